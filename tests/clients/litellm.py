"""LiteLLM: one completion, one stream."""

import sys

sys.path.pop(0)  # this file has the package's name

import litellm

url, model = sys.argv[1:]
ask = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "any"}
messages = [{"role": "user", "content": "Say hi."}]
whole = litellm.completion(messages=messages, **ask)
streamed = "".join(
    part.choices[0].delta.content or "" for part in litellm.completion(messages=messages, stream=True, **ask)
)
print(whole.choices[0].message.content, "|", streamed)
