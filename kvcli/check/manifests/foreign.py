"""Files of a folder that are none of ours: what cannot be read there and starts no engine is passed over, not an error."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

#: what every manifest that kvcli reads has: an object's version, or the services of a compose file
_MANIFEST = re.compile(rb"apiVersion|services", re.IGNORECASE)
#: parts of the names of engines, of their images, options and operators, and of formats of models
_ENGINE = re.compile(
    rb"llm|llama|sglang|text-generation|\btgi\b|tensorrt|triton|lmdeploy|\bnims?\b|hugging|kaito|kserve|inference|aphrodite|kobold"
    rb"|local-?ai|infinity|embeddings|mlx|dynamo|ray\.io|gguf|-server\b|max[-_](?:model|total|seq)",
    re.IGNORECASE,
)
#: what starts an engine wherever it stands, in a template's part or a text too: programs, modules and the makers' own images
_STARTS = re.compile(
    rb"\bvllm[\"',\s\]\[-]{1,8}serve\b|vllm\.entrypoints|vllm/vllm-|sglang\.launch_server|lmsysorg/sglang|llama-server\b|llama\.cpp:"
    rb"|text-generation-launcher|text-generation-inference:|trtllm-serve|ollama[\"',\s-]{1,8}serve\b|ollama/ollama",
    re.IGNORECASE,
)
_CHUNK, _OVERLAP = 1 << 20, 64


def is_foreign(path: Path) -> bool:
    """Whether no engine can be in the file: it is no regular file that is there, or starts none and is no manifest or names none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return True
    except FileNotFoundError:  # a link to nothing
        return True
    except OSError:
        return False
    try:
        manifest = engine = False
        with path.open("rb") as stream:
            held = b""
            while piece := stream.read(_CHUNK):
                held = held[-_OVERLAP:] + piece
                manifest = manifest or _MANIFEST.search(held) is not None
                engine = engine or _ENGINE.search(held) is not None
                if (manifest and engine) or _STARTS.search(held):
                    return False
    except OSError:
        return False
    return True
