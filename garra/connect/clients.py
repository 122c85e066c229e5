"""What each client wants to read. Pure. Each was run against garra with what stands here: docs/clients.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from garra.connect.words import FileChange, Served, Setup

_ANY_KEY = "garra"


def opencode(served: Served) -> Setup:
    key = f"{{env:{served.key_env}}}" if served.key_env else served.key
    model = {"name": f"{served.model} (garra)", "limit": {"context": served.n_ctx, "output": served.n_output}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "garra",
        "options": {"baseURL": served.v1, "apiKey": key},
        "models": {served.model: model},
    }
    settings = {"model": f"garra/{served.model}", "provider": {"garra": provider}}
    file = FileChange("~/.config/opencode/opencode.json", "json", settings)
    return Setup((file,), command='opencode run "Say hi"', notes=("its prompts are about 8k tokens with tools",))


def cline(served: Served) -> Setup:
    key = f'"${served.key_env}"' if served.key_env else served.key
    return Setup(
        command=f"cline auth -p openai -k {key} -m {served.model} -b {served.v1}",
        notes=(
            "run it once; cline keeps it in ~/.cline",
            "in VS Code: provider OpenAI Compatible, the same three values",
        ),
    )


def continue_(served: Served) -> Setup:
    model = {
        "name": f"garra {served.model}",
        "provider": "openai",
        "model": served.model,
        "apiBase": served.v1,
        "apiKey": f"${{{{ secrets.{served.key_env} }}}}" if served.key_env else served.key,
        "roles": ["chat", "edit", "apply"],
        "defaultCompletionOptions": {"contextLength": served.n_ctx, "maxTokens": served.n_output},
    }
    settings = {"name": "garra", "version": "1.0.0", "schema": "v1", "models": [model]}
    file = FileChange("~/.continue/config.yaml", "yaml", settings, by=("models", "name"))
    return Setup((file,), command='cn -p "Say hi"')


def aider(served: Served) -> Setup:
    settings = {"model": f"openai/{served.model}", "openai-api-base": served.v1}
    settings |= {} if served.key_env else {"openai-api-key": served.key}
    known = {
        "max_input_tokens": served.n_ctx, "max_output_tokens": served.n_output, "max_tokens": served.n_output,
        "litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 0, "output_cost_per_token": 0,
    }  # fmt: skip
    files = (
        FileChange("~/.aider.conf.yml", "yaml", settings),
        FileChange("~/.aider.model.metadata.json", "json", {f"openai/{served.model}": known}),
    )
    env = {"OPENAI_API_KEY": f"${served.key_env}"} if served.key_env else None
    return Setup(files, env, command='aider --no-check-update --message "Say hi"')


def cursor(served: Served) -> Setup:
    return Setup(
        steps=(
            "Settings > Models > API Keys: turn on OpenAI API Key and Override OpenAI Base URL",
            f"base URL: {served.v1}",
            f"API key: {'the value of ' + served.key_env if served.key_env else served.key}",
            f"add a custom model: {served.model}",
        ),
        notes=(
            "Cursor's own servers make the requests: they cannot reach 127.0.0.1. Give garra an address they can reach "
            "(a tunnel or a public host, with garra keys create cursor), and use that as the base URL",
        ),
    )


def vscode(served: Served) -> Setup:
    file = FileChange(
        "~/.config/Code/User/settings.json", "json", {"github.copilot.chat.byok.ollamaEndpoint": served.url}
    )
    return Setup(
        (file,),
        steps=(f"in the chat's model picker: Manage Models > Ollama, and choose {served.model}",),
        notes=("it takes no key: garra needs keyless = true, or no keys",) if served.key_env else (),
    )


def codex(served: Served) -> Setup:
    provider = {
        "name": "garra", "base_url": served.v1, "wire_api": "responses",
        "stream_idle_timeout_ms": 600_000, "request_max_retries": 2, "stream_max_retries": 2,
    }  # fmt: skip
    provider |= {"env_key": served.key_env} if served.key_env else {}
    settings = {
        "model": served.model,
        "model_provider": "garra",
        "model_context_window": served.n_ctx,
        "model_providers": {"garra": provider},
    }
    file = FileChange("~/.codex/config.toml", "toml", settings)
    return Setup(
        (file,),
        command='codex exec --skip-git-repo-check "Say hi" </dev/null',
        notes=("its prompts are about 7k tokens: a context of 16k or more",),
    )


def claude_code(served: Served) -> Setup:
    env = {
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_MODEL": served.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": served.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.n_output),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.n_ctx),
        "MAX_THINKING_TOKENS": "0",
    }
    env |= {} if served.key_env else {"ANTHROPIC_AUTH_TOKEN": served.key}
    file = FileChange("~/.claude/settings.json", "json", {"env": env})
    return Setup(
        (file,),
        {"ANTHROPIC_AUTH_TOKEN": f"${served.key_env}"} if served.key_env else None,
        command='claude -p "Say hi"',
        notes=('its prompts are 12k to 23k tokens: a context of 32k or more; with --tools "Read,Edit,Write,Bash" 5k',),
    )


def qwen_code(served: Served) -> Setup:
    settings = {
        "model": {"name": served.model},
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "memory": {"enableManagedAutoMemory": False},
    }
    env = {"OPENAI_BASE_URL": served.v1, "OPENAI_MODEL": served.model}
    env |= {} if served.key_env else {"OPENAI_API_KEY": served.key}
    files = (FileChange("~/.qwen/settings.json", "json", settings), FileChange("~/.qwen/.env", "env", env))
    return Setup(
        files,
        {"OPENAI_API_KEY": f"${served.key_env}"} if served.key_env else None,
        command='qwen --auth-type openai -p "Say hi"',
        notes=("its prompts are about 16k tokens: a context of 32k or more",),
    )


def zed(served: Served) -> Setup:
    model = {
        "name": served.model,
        "display_name": f"{served.model} (garra)",
        "max_tokens": served.n_ctx,
        "max_output_tokens": served.n_output,
        "capabilities": {
            "tools": served.tools, "images": served.vision, "parallel_tool_calls": False, "prompt_cache_key": True,
        },
    }  # fmt: skip
    provider = {"garra": {"api_url": served.v1, "available_models": [model]}}
    settings = {"language_models": {"openai_compatible": provider}}
    return Setup(
        (FileChange("~/.config/zed/settings.json", "json", settings),),
        {"GARRA_API_KEY": f"${served.key_env}" if served.key_env else _ANY_KEY},
    )


def open_webui(served: Served) -> Setup:
    env = {"OLLAMA_BASE_URL": served.url, "ENABLE_OPENAI_API": "false"}
    if served.key_env:
        env = {"OPENAI_API_BASE_URL": served.v1, "OPENAI_API_KEY": f"${served.key_env}", "ENABLE_OLLAMA_API": "false"}
    return Setup(
        environment=env,
        command="open-webui serve",
        steps=(f"choose {served.model} in a new chat",),
        notes=("in a container: --network host, or an address of this machine the container can reach, and a key",),
    )


CLIENTS: Mapping[str, Callable[[Served], Setup]] = {
    "opencode": opencode,
    "cline": cline,
    "continue": continue_,
    "aider": aider,
    "cursor": cursor,
    "vscode": vscode,
    "codex": codex,
    "claude-code": claude_code,
    "qwen-code": qwen_code,
    "zed": zed,
    "open-webui": open_webui,
}
