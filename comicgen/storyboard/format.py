"""The storyboard as the author writes it: the one door where text becomes typed values."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from comicgen.storyboard.scalars import (
    Aspect,
    Block,
    ControlWeight,
    Count,
    Guidance,
    Line,
    LoraWeight,
    Name,
    PanelId,
    Precision,
    Sampler,
    Seed,
    Share,
    SizeText,
    SomeLine,
    Steps,
)


class Written(BaseModel):
    """A mapping of the storyboard that has these keys and no others."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        model_title_generator=lambda model: model.__name__.removeprefix("Written"),
    )


class WrittenLora(Written):
    """A LoRA and how strongly it works."""

    file: SomeLine = Field(
        description="A .safetensors file beside the storyboard, or the name of a shipped LoRA.",
        examples=["loras/mara.safetensors", "noir"],
    )
    weight: LoraWeight = Field(default=1.0, description="How strongly it works.", examples=[0.8])


class WrittenControl(Written):
    """A ControlNet that makes the picture follow a control image."""

    model: SomeLine = Field(
        description="A ControlNet's diffusers folder, or the name of a shipped one.",
        examples=["lineart", "./my-controlnet"],
    )
    image: SomeLine = Field(
        description="The ready control image, in the aspect of the panel.",
        examples=["maps/p01.png"],
    )
    weight: ControlWeight = Field(default=1.0, description="How strongly it works.", examples=[0.7])
    start: Share = Field(default=0.0, description="From which share of the steps it works.")
    end: Share = Field(default=1.0, description="Up to which share of the steps it works.")


class WrittenCharacter(Written):
    """Someone or something whose words and LoRAs come wherever {name} stands in a prompt."""

    prompt: SomeLine = Field(
        description="Written in place of {name}.", examples=["a farmer in a blue shirt"]
    )
    loras: tuple[WrittenLora, ...] | None = Field(
        default=None, description="LoRAs that come with the character."
    )


class Settings(Written):
    """What can stand in `defaults` and in a panel; a panel's own word comes first."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["aspect", "size"]}})

    aspect: Aspect | None = Field(
        default=None,
        description="Width to height; picks the trained size that is nearest. Or write size.",
        examples=["1:1", "3:4", "16:9"],
    )
    size: SizeText | None = Field(
        default=None,
        description="Width and height in pixels, multiples of 8. Or write aspect.",
        examples=["1024x1024"],
    )
    steps: Steps | None = Field(default=None, description="Denoising steps; 20 if not written.")
    guidance: Guidance | None = Field(
        default=None, description="How closely the prompt is followed; 7 if not written."
    )
    sampler: Sampler | None = Field(
        default=None, description="How the steps are taken; euler if not written."
    )
    candidates: Count | None = Field(
        default=None, description="How many pictures of a panel to draw; 2 if not written."
    )
    negative: Line | None = Field(
        default=None,
        description="What the picture should not show; null for none.",
        examples=["blurry"],
    )
    style: Line | None = Field(
        default=None,
        description="Added to the end of each prompt, after a comma; null for none.",
        examples=["comic book style"],
    )
    loras: tuple[WrittenLora, ...] | None = Field(
        default=None, description="LoRAs; on a panel they replace those of the defaults."
    )
    control: WrittenControl | None = Field(
        default=None, description="A ControlNet with its image; null for none."
    )


class WrittenPanel(Settings):
    """One frame of the story."""

    id: PanelId = Field(
        description="Names the panel's files: letters, digits, - and _.", examples=["p01"]
    )
    prompt: SomeLine = Field(
        description="What the picture shows; {name} stands for a character.",
        examples=["{mara} walking on a beach at night"],
    )
    seed: Seed | None = Field(
        default=None, description="Seed of the first candidate; the next ones count up."
    )
    title: Line | None = Field(default=None, description="A title, for people.")
    caption: Block | None = Field(default=None, description="The caption, for readers.")


class WrittenHead(Written):
    """What holds for the whole story."""

    title: Line | None = Field(default=None, description="The story's title.")
    model: SomeLine = Field(
        default="pocket",
        description="pocket, the embedded model, or the path of a diffusers folder.",
        examples=["pocket", "models/sdxl-base"],
    )
    seed: Seed = Field(default=0, description="From which panels without a seed get theirs.")
    precision: Precision | None = Field(
        default=None, description="Type of the weights; the device's own if not written."
    )


class WrittenStoryboard(WrittenHead):
    """A storyboard for comicgen: panels, and what they share."""

    defaults: Settings | None = Field(default=None, description="What holds for every panel.")
    characters: dict[Name, WrittenCharacter] | None = Field(
        default=None, description="Whom prompts mention as {name}."
    )
    panels: Annotated[tuple[WrittenPanel, ...], Field(min_length=1)] = Field(
        description="The frames of the story, in order."
    )


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a storyboard, for an editor's YAML plugin."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **WrittenStoryboard.model_json_schema(),
    }
