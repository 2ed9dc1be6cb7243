"""POST /v1/audio/transcriptions and translations: what is said in a file. Pure.

Source of the bytes: vllm/entrypoints/speech_to_text/{base,transcription,translation}/{protocol,serving}.py. A WAV file
is as long as it says; of other formats 16,000 bytes are taken for a second. The words are drawn from the file's hash,
three a second at most. However long it is, it is heard as one window; vLLM cuts it into some of 30 seconds.
"""

import hashlib
import io
import math
import wave
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from backends.simulator.answers import Choice, Heading, Piece, Usage, Writer, dumps, quote
from backends.simulator.apis.chunks import DONE, ChunkWriter
from backends.simulator.asks import Ask, Body, Served, StreamOptions, check_model, check_prompts, room
from backends.simulator.refusals import bad_parameter, bad_request, missing
from backends.simulator.tokens import tokenize

BYTES_PER_S = 16_000
"""128 kbit/s, as MP3 files have it."""

AUDIO_TOKENS_PER_S = 100
"""Whisper's frames, which its usage counts as tokens of the prompt."""

WORDS_PER_S = 3

_DECODER_PROMPT = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
_MAGIC = (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf1", b"fLaC", b"OggS", b"\x1aE\xdf\xa3")


class _SpeechBody(Body, frozen=True, kw_only=True):
    """file: None is none."""

    file: bytes | None = None
    language: str | None = None
    prompt: str = ""
    response_format: str = "json"
    stream: bool | None = False
    stream_include_usage: bool | None = False
    stream_continuous_usage_stats: bool | None = False
    max_completion_tokens: int | None = None

    is_form = True
    task: ClassVar[Literal["transcription", "translation"]]

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    def ask(self, served: Served) -> Ask:
        if self.file is None:
            raise missing(self.given(), "file")
        for option in ("stream_include_usage", "stream_continuous_usage_stats"):
            if getattr(self, option) and not self.stream:
                raise bad_parameter("Stream options can only be defined when `stream=True`.", option)
        check_model(self.model, served)
        if self.response_format not in ("json", "text", "verbose_json"):
            raise bad_request(
                "Currently only support response_format: `text`, `json`, `verbose_json` or `diarized_json`"
            )
        if self.stream and self.response_format == "verbose_json":
            raise bad_request("verbose_json format doesn't support streaming case")
        seconds = self.seconds()
        prompt = [*_DECODER_PROMPT, *tokenize(self.prompt)]
        left = room(
            self.max_completion_tokens, check_prompts((prompt,), served), served, "max_completion_tokens"
        )
        sound = f"<|{hashlib.sha256(self.file).hexdigest()[:8]}|>"
        return Ask(
            prompts=([*prompt, *[sound] * math.ceil(seconds * AUDIO_TOKENS_PER_S)],),
            max_tokens=min(left, max(1, math.ceil(seconds * WORDS_PER_S))),
            stream=self.streams,
        )

    def seconds(self) -> float:
        """How long the audio is. Raises Refused."""
        audio = self.file or b""
        if audio.startswith(b"RIFF"):
            try:
                with wave.open(io.BytesIO(audio)) as file:
                    return float(file.getnframes() / file.getframerate())
            except (wave.Error, EOFError, ZeroDivisionError):
                pass
        elif audio.startswith(_MAGIC) or audio[4:8] == b"ftyp":
            return len(audio) / BYTES_PER_S
        raise bad_request("Invalid or unsupported audio file.")

    def writer(self, heading: Heading, _ask: Ask, _served: Served, /) -> Writer:
        if self.response_format == "verbose_json":
            return VerboseWriter(self.seconds(), self.language or "en")
        options = StreamOptions(self.stream_include_usage, self.stream_continuous_usage_stats)
        return SpeechWriter(heading, self.task, options, self.seconds())


class TranscriptionBody(_SpeechBody, frozen=True, kw_only=True):
    id_prefix = "transcribe-"
    task = "transcription"


class TranslationBody(_SpeechBody, frozen=True, kw_only=True):
    id_prefix = "translate-"
    task = "translation"


class SpeechWriter(ChunkWriter):
    """A sized transcription tells the seconds that were heard, a sized translation nothing, a stream tokens."""

    def __init__(self, heading: Heading, task: str, options: StreamOptions, seconds: float) -> None:
        super().__init__(heading, f"{task}.chunk", options)
        self._tells_seconds = task == "transcription"
        self._seconds = seconds

    def sized(self, choices: Sequence[Choice], _usage: Usage, /) -> bytes:
        answer: dict[str, object] = {"text": choices[0].text}
        if self._tells_seconds:
            answer["usage"] = {"type": "duration", "seconds": math.ceil(self._seconds)}
        return dumps(answer).encode()

    def begin(self, _prompts: Sequence[Usage], /) -> Iterator[bytes]:
        yield from ()

    def token(self, piece: Piece, /) -> Iterator[bytes]:
        if not piece.text and piece.finish_reason is None:
            return
        finish = ""
        if piece.finish_reason is not None:
            finish = f',"finish_reason":"{piece.finish_reason}","stop_reason":null'
        yield self._chunk(f'{{"delta":{{"content":{quote(piece.text)}}}{finish}}}', piece.usage)

    def end(self, usage: Usage, /) -> Iterator[bytes]:
        if self._include_usage:
            yield f'data: {self._start}[],"usage":{{{usage.counts()}}}}}\n\n'.encode()
        yield DONE


class VerboseWriter(Writer):
    """It says how long the audio is, which other answers tell by their usage, and in which language."""

    def __init__(self, seconds: float, language: str) -> None:
        self._seconds = seconds
        self._language = language

    def sized(self, choices: Sequence[Choice], _usage: Usage, /) -> bytes:
        text = choices[0].text
        segment: dict[str, object] = {
            "id": 0, "avg_logprob": -0.25, "compression_ratio": 1.0, "end": self._seconds, "no_speech_prob": None,
            "seek": 0, "start": 0.0, "temperature": 0.0, "text": text, "tokens": [],
        }  # fmt: skip
        answer = {
            "duration": self._seconds, "language": self._language, "text": text, "segments": [segment], "words": None,
        }  # fmt: skip
        return dumps(answer).encode()
