"""The samplers that a storyboard can name, as diffusers' schedulers with SDXL's settings.

A scheduler keeps its schedule on the CPU, where `step()` reads single numbers from it without
waiting for the device. Two of diffusers' classes would wait all the same; here they do not, and
give the same numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from torch import Tensor


class EulerAncestral(EulerAncestralDiscreteScheduler):
    """Euler's method with fresh noise after every step, which the caller hands in."""

    config: Any
    sigmas: Tensor
    begin_index: int
    step_index: int | None

    def step(
        self,
        model_output: Tensor,
        timestep: Tensor,
        sample: Tensor,
        *,
        noise: Tensor,
        return_dict: bool = False,
    ) -> tuple[Tensor]:
        """One step: down to `sigma_down`, then up again by `sigma_up` with the noise.

        All tensors are (B, C, h, w) float32; the splitting of sigma is that of
        arXiv 2206.00364 with the noise of ancestral sampling (arXiv 2006.11239).
        """
        step = self.begin_index if self.step_index is None else self.step_index
        sigma, target = self.sigmas[step], self.sigmas[step + 1]
        up = (target**2 * (sigma**2 - target**2) / sigma**2) ** 0.5
        down = (target**2 - up**2) ** 0.5
        derivative = (sample - self._denoised(model_output, sample, sigma)) / sigma
        self._step_index = step + 1
        return (sample + derivative * (down - sigma) + noise * up,)

    def _denoised(self, model_output: Tensor, sample: Tensor, sigma: Tensor) -> Tensor:
        if self.config.prediction_type == "v_prediction":
            return model_output * (-sigma / (sigma**2 + 1) ** 0.5) + sample / (sigma**2 + 1)
        return sample - sigma * model_output


class UniPC(UniPCMultistepScheduler):
    """UniPC of order 1 and 2 with B(h) = expm1(h), coefficients on the CPU (arXiv 2302.04867)."""

    sigmas: Tensor
    step_index: int
    model_outputs: list[Tensor]
    _sigma_to_alpha_sigma_t: Callable[[Tensor], tuple[Tensor, Tensor]]

    def multistep_uni_p_bh_update(
        self, model_output: Tensor, *, sample: Tensor, order: int
    ) -> Tensor:
        """The predictor: from this step's noise level to the next one's."""
        s, t = self.step_index, self.step_index + 1
        moved = self._straight(sample, s, t)
        return moved - self._pull(s, t) * (self._slope(s, t) * 0.5) if order == 2 else moved

    def multistep_uni_c_bh_update(
        self, this_model_output: Tensor, *, last_sample: Tensor, this_sample: Tensor, order: int
    ) -> Tensor:
        """The corrector: the last step once more, now that the model was asked at its end."""
        s, t = self.step_index - 1, self.step_index
        change = this_model_output - self.model_outputs[-1]
        if order == 2:
            weights = self._corrector_weights(s, t)
            bend = weights[0] * self._slope(s, t) + weights[1] * change
        else:
            bend = change * 0.5
        return self._straight(last_sample, s, t) - self._pull(s, t) * bend

    def _straight(self, sample: Tensor, s: int, t: int) -> Tensor:
        """The first-order step, which takes the model's answer for constant."""
        _, sigma_s = self._sigma_to_alpha_sigma_t(self.sigmas[s])
        _, sigma_t = self._sigma_to_alpha_sigma_t(self.sigmas[t])
        return sigma_t / sigma_s * sample - self._pull(s, t) * self.model_outputs[-1]

    def _pull(self, s: int, t: int) -> Tensor:
        alpha, _ = self._sigma_to_alpha_sigma_t(self.sigmas[t])
        return alpha * torch.expm1(self._log_snr(s) - self._log_snr(t))

    def _corrector_weights(self, s: int, t: int) -> Tensor:
        hh = self._log_snr(s) - self._log_snr(t)
        growth = torch.expm1(hh)
        first = growth / hh - 1
        second = first / hh - 0.5
        powers = torch.stack([torch.ones(2), torch.stack([self._ratio(s, t), torch.ones(())])])
        moments = torch.stack([first / growth, second * 2 / growth])
        weights: Tensor = torch.linalg.solve(powers, moments)
        return weights

    def _slope(self, s: int, t: int) -> Tensor:
        earlier, now = self.model_outputs[-2:]
        return (earlier - now) / self._ratio(s, t)

    def _ratio(self, s: int, t: int) -> Tensor:
        origin = self._log_snr(s)
        return (self._log_snr(s - 1) - origin) / (self._log_snr(t) - origin)

    def _log_snr(self, step: int) -> Tensor:
        alpha, sigma = self._sigma_to_alpha_sigma_t(self.sigmas[step])
        return alpha.log() - sigma.log()


@dataclass(frozen=True, slots=True)
class Sampler:
    """A scheduler class with its settings; a noisy one wants fresh noise at every step."""

    scheduler: type[Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    noisy: bool = False


_DPM = {
    "algorithm_type": "dpmsolver++",
    "solver_order": 2,
    "solver_type": "midpoint",
    "lower_order_final": True,
    "final_sigmas_type": "zero",
}
_UNIPC = {"solver_order": 2, "solver_type": "bh2", "predict_x0": True, "lower_order_final": True}

SAMPLERS: Mapping[str, Sampler] = {
    "euler": Sampler(EulerDiscreteScheduler),
    "euler a": Sampler(EulerAncestral, noisy=True),
    "dpm++ 2m": Sampler(DPMSolverMultistepScheduler, _DPM),
    "dpm++ 2m karras": Sampler(DPMSolverMultistepScheduler, _DPM | {"use_karras_sigmas": True}),
    "ddim": Sampler(DDIMScheduler, {"clip_sample": False, "set_alpha_to_one": False}),
    "unipc": Sampler(UniPC, _UNIPC),
}


def schedule(sampler: str, training: Mapping[str, Any], steps: int) -> Any:
    """A fresh scheduler for one batch, its timesteps on the CPU, ready for its first step.

    `training` is how the model was trained to see noise: `ModelFolder.schedule`.
    """
    chosen = SAMPLERS[sampler]
    scheduler = chosen.scheduler(**training, **chosen.settings)
    scheduler.set_timesteps(steps, device="cpu")
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)
    return scheduler
