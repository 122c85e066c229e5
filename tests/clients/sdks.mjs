// Four SDKs of the npm registry against one garra: each asks, streams and fails, and tells what it saw as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, streamText } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "Say hi." }];
const told = {};
// Temperature 0 throughout: where a sampled answer begins with an emoji, the engine names no role in its stream.

async function status(promise) {
  try {
    await promise;
    return "no error";
  } catch (error) {
    return error.status ?? error.status_code ?? error.statusCode ?? error.message;
  }
}

async function openai() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
  const whole = await client.chat.completions.create({ model, messages, max_tokens: 6, temperature: 0 });
  const stream = client.chat.completions.stream({
    model, messages, max_tokens: 6, temperature: 0, stream_options: { include_usage: true },
  });
  const final = await stream.finalChatCompletion();
  const response = client.responses.stream({ model, input: "Say hi.", max_output_tokens: 6, temperature: 0 });
  const answer = await response.finalResponse();
  return {
    whole: whole.choices[0].message.content, streamed: final.choices[0].message.content,
    usage: (await stream.totalUsage()).completion_tokens, response: answer.output_text,
    models: (await client.models.list()).data.map((one) => one.id),
    unknown: await status(client.chat.completions.create({ model: "none", messages })),
  };
}

async function anthropic() {
  const client = new Anthropic({ baseURL: url, apiKey: "any", maxRetries: 0 });
  const ask = { model, max_tokens: 6, temperature: 0, messages };
  const whole = await client.messages.create(ask);
  const final = await client.messages.stream(ask).finalMessage();
  return {
    whole: whole.content[0].text, streamed: final.content[0].text, stop: final.stop_reason,
    tokens: (await client.messages.countTokens({ model, messages })).input_tokens,
    unknown: await status(client.messages.create({ ...ask, model: "none" })),
  };
}

async function ollama() {
  const client = new Ollama({ host: url });
  const options = { num_predict: 6, temperature: 0 };
  const whole = await client.chat({ model, messages, options });
  let streamed = "";
  let last;
  for await (const part of await client.chat({ model, messages, options, stream: true })) {
    streamed += part.message.content;
    last = part;
  }
  return {
    whole: whole.message.content, streamed, done: last.done, tokens: last.eval_count,
    models: (await client.list()).models.map((one) => one.name),
    context: (await client.show({ model })).model_info["llama.context_length"],
    unknown: await status(client.chat({ model: "none", messages })),
  };
}

async function vercel() {
  const provider = createOpenAICompatible({ name: "garra", baseURL: `${url}/v1`, apiKey: "any", includeUsage: true });
  const ask = { model: provider(model), prompt: "Say hi.", maxOutputTokens: 6, temperature: 0, maxRetries: 0 };
  const whole = await generateText(ask);
  const stream = streamText(ask);
  let streamed = "";
  for await (const piece of stream.textStream) streamed += piece;
  return {
    whole: whole.text, streamed, reason: await stream.finishReason, tokens: (await stream.usage).outputTokens,
    unknown: await status(generateText({ ...ask, model: provider("none") })),
  };
}

for (const [name, run] of Object.entries({ openai, anthropic, ollama, vercel })) told[name] = await run();
console.log(JSON.stringify(told));
