"""LangChain: one answer, one stream."""

import sys

sys.path.pop(0)

from langchain_openai import ChatOpenAI

url, model = sys.argv[1:]
chat = ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="any", max_retries=0)
print(chat.invoke("Say hi.").content, "|", "".join(part.content for part in chat.stream("Say hi.")))
