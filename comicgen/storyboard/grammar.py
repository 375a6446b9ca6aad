r"""What may stand in a prompt: words, {references} to characters, and \ before a literal sign.

Signs that other programs obey and this one would draw as words are refused by name: attention
weights as in (word:1.2), <lora:name:0.8>, {a|b} and $$.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from comicgen.storyboard.complaints import nearest, quoted

_SIGN = re.compile(
    r"\\(?P<literal>[\\{}()\[\]<>|$:])"
    r"|\{(?P<reference>[^{}\\]*)\}"
    r"|(?P<brace>[{}])"
    r"|(?P<dollars>\$\$)"
    r"|(?P<network><\s*(?:lora|lyco|hypernet)\s*:[^<>]*>)"
    r"|(?P<weight>:\s*[+-]?(?:[0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})\s*\))"
    r"|(?P<bracket>[()])",
    re.IGNORECASE,
)

Problem = tuple[str, str]
"""What is wrong, and the cure."""


@dataclass(frozen=True, slots=True)
class Wording:
    """A prompt with its references written out, whom it mentions, and what is wrong with it."""

    text: str
    mentioned: tuple[str, ...]
    problems: tuple[Problem, ...]


def word(prompt: str, characters: Mapping[str, str] | None = None) -> Wording:
    """Write a prompt out; `characters` gives their words, None where none can be mentioned."""
    return _Writer(characters).write(prompt)


class _Writer:
    def __init__(self, characters: Mapping[str, str] | None) -> None:
        self.characters = characters
        self.mentioned: list[str] = []
        self.problems: list[Problem] = []
        self.depth = 0

    def write(self, prompt: str) -> Wording:
        text = " ".join(_SIGN.sub(self.sign, prompt).split())
        mentioned = tuple(dict.fromkeys(self.mentioned))
        return Wording(text, mentioned, tuple(dict.fromkeys(self.problems)))

    def sign(self, found: re.Match[str]) -> str:
        """What is written in place of one sign."""
        kind, sign = found.lastgroup, found[0]
        if kind == "literal":
            return found["literal"]
        if kind == "reference":
            return self.reference(unicodedata.normalize("NFC", found["reference"].strip()))
        if kind == "bracket":
            self.depth += 1 if sign == "(" else -1 if self.depth else 0
            return sign
        if kind == "weight":
            if not self.depth:
                return sign
            self.depth -= 1
        self.problems.append(_refusal(str(kind), sign))
        return sign

    def reference(self, name: str) -> str:
        """The words of a character."""
        shown = quoted(f"{{{name}}}")
        if "|" in name or "$$" in name:
            cure = r"choose one, or write \{ \} for the signs themselves"
            self.problems.append((f"alternatives such as {shown} are not supported", cure))
        elif self.characters is None:
            cure = "mention characters in a panel's prompt"
            self.problems.append((f"{shown} mentions a character, which cannot be done here", cure))
        elif name not in self.characters:
            who = nearest(name, self.characters) or "describe it under characters:"
            self.problems.append((f"{shown} mentions no character of the storyboard", who))
        else:
            self.mentioned.append(name)
            return self.characters[name]
        return ""


def _refusal(kind: str, sign: str) -> Problem:
    if kind == "weight":
        what = f"attention weights such as (word{''.join(sign.split())} are not supported"
        return what, r"remove the weight, or write \( \) for the signs themselves"
    if kind == "network":
        return f"{quoted(sign)} names a LoRA in the prompt", "name its file under loras:"
    if kind == "dollars":
        return "$$ is a wildcard, which is not supported", r"write \$\$ for the signs themselves"
    return f"a {sign} has no partner", rf"write \{sign} for the sign itself"
