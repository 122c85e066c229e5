"""Pydantic AI: one answer."""

import sys

sys.path.pop(0)

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

url, model = sys.argv[1:]
agent = Agent(OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="any")))
print(agent.run_sync("Say hi.").output)
