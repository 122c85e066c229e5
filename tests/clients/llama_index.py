"""LlamaIndex: one answer, one stream."""

import sys

sys.path.pop(0)

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

url, model = sys.argv[1:]
llm = OpenAILike(model=model, api_base=f"{url}/v1", api_key="any", is_chat_model=True, max_retries=0)
ask = [ChatMessage(role="user", content="Say hi.")]
print(llm.chat(ask).message.content, "|", "".join(part.delta or "" for part in llm.stream_chat(ask)))
