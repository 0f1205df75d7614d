"""Windows of neonatal EEG with seizure labels: from a local file, or synthetic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.errors import FedtaperError
from fedtaper.problems.data.sources import FOLDER_VARIABLE, folder_of

FILE = "neonatal_eeg.npz"
EXPERTS = ("A", "B", "both")
CHANNELS, SAMPLES, HERTZ = 18, 64, 64
BANDS = ((0.5, 3.5), (3.5, 8.5), (8.5, 15.5), (15.5, 30.5))  # Hz
_STAND_IN = 9  # place of the draws
_SEIZURE_INFANTS, _OTHER_INFANTS, _OTHER_WINDOWS = 40, 22, 18


@dataclass(frozen=True, eq=False)
class EegWindows:
    """One-second windows: ``x`` (windows, channels, samples) in microvolts.

    ``y`` is 1 for a seizure, ``infant`` says whose window it is. Every infant has windows of
    one kind only, in the synthetic data as in the file.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    infant: NDArray[np.int64]

    @property
    def infants(self) -> NDArray[np.int64]:
        """Every infant's number, once."""
        return np.unique(self.infant)

    def seizure(self, infant: int) -> bool:
        """Whether the infant's windows are seizures."""
        return bool(self.y[self.infant == infant].mean() > 0.5)


def load_eeg(data_dir: str | Path | None = None, expert: str = "both") -> EegWindows:
    """The windows that one expert or both labelled, from ``neonatal_eeg.npz`` in a folder.

    The folder is named in the call or by the variable FEDTAPER_DATA. The file holds ``x_A``,
    ``y_A`` and ``infant_A``, and the same for B; x is (windows, samples, channels).
    """
    if expert not in EXPERTS:
        raise FedtaperError(f"expert must be one of {', '.join(EXPERTS)}, not {expert!r}")
    folder = folder_of(data_dir)
    if folder is None or not (folder / FILE).is_file():
        where = "no data folder is named" if folder is None else f"{folder} does not hold it"
        raise FedtaperError(
            f"{FILE} cannot be downloaded, and {where}: name its folder (data_dir= or the variable "
            f'{FOLDER_VARIABLE}), or use data="synthetic"'
        )
    with np.load(folder / FILE) as file:
        try:
            parts = [
                (file[f"x_{one}"], file[f"y_{one}"], file[f"infant_{one}"])
                for one in (("A", "B") if expert == "both" else (expert,))
            ]
        except KeyError as missing:
            raise FedtaperError(f"{folder / FILE} has no array {missing.args[0]}") from None
    x, y, infant = (np.concatenate([part[j] for part in parts]) for j in range(3))
    if x.ndim != 3 or not np.all(np.isfinite(x)) or not len(x) == len(y) == len(infant):
        raise FedtaperError(
            f"{folder / FILE} must hold finite windows, and one label and infant for each"
        )
    x = np.ascontiguousarray(x.transpose(0, 2, 1), dtype=np.float32)
    return EegWindows(x, y.astype(np.int64), infant.astype(np.int64))


def stand_in(seed: int = 0) -> EegWindows:
    """Synthetic windows of the same shape, so that everything runs without the recordings.

    Every infant has its own amplitude and a background whose power falls with the
    frequency. A seizure adds a sharpened rhythm of 1.5 to 4 Hz to some of the channels. It
    resembles EEG only roughly: nothing about infants can be learned from it.
    """
    xs, ys, infants = [], [], []
    for infant in range(_SEIZURE_INFANTS + _OTHER_INFANTS):
        rng = draws.generator(seed, _STAND_IN, infant)
        seizure = infant < _SEIZURE_INFANTS
        count = int(rng.integers(2, 46)) if seizure else 2 * _OTHER_WINDOWS
        x = _background(rng, count)
        if seizure:
            x += _rhythm(rng, count)
        xs.append(np.exp(rng.normal(3.2, 0.8)) * x)
        ys.append(np.full(count, int(seizure)))
        infants.append(np.full(count, infant))
    return EegWindows(
        np.concatenate(xs).astype(np.float32), np.concatenate(ys), np.concatenate(infants)
    )


def _background(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Noise whose amplitude falls like 1 / frequency, of unit spread."""
    frequency = np.fft.rfftfreq(SAMPLES, 1 / HERTZ)
    shape = (count, CHANNELS, len(frequency))
    spectrum = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    x = np.fft.irfft(spectrum / np.maximum(frequency, 1.0), SAMPLES, axis=-1)
    return np.asarray(x / x.std(), dtype=np.float64)


def _rhythm(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """One infant's seizure: a rhythm with a harmonic, on channels of its own."""
    frequency, strength = rng.uniform(1.5, 4.0), rng.uniform(0.6, 1.8)
    where = rng.random(CHANNELS) < 0.4
    phase = rng.uniform(0, 2 * np.pi, size=(count, 1, 1)) + 0.3 * rng.normal(
        size=(count, CHANNELS, 1)
    )
    turn = 2 * np.pi * frequency * np.arange(SAMPLES) / HERTZ + phase
    return strength * where[:, None] * (np.sin(turn) + 0.5 * np.sin(2 * turn + 1.0))


def features(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Twelve numbers of each window, the same for every channel order.

    The logarithms of the spread, the line length (mean absolute step) and the power in four
    bands: their mean and their spread over the channels.
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    frequency = np.fft.rfftfreq(x.shape[-1], 1 / HERTZ)
    power = np.abs(np.fft.rfft(centred, axis=-1)) ** 2
    parts = [centred.std(axis=-1), np.abs(np.diff(x, axis=-1)).mean(axis=-1)]
    for low, high in BANDS:
        inside = (frequency >= low) & (frequency < high)
        parts.append(np.sqrt(power[..., inside].mean(axis=-1)))
    logs = np.log(np.stack(parts, axis=1) + 1e-2)  # (windows, 6, channels)
    return np.concatenate([logs.mean(axis=-1), logs.std(axis=-1)], axis=1).astype(np.float32)


def compressed(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Microvolts on a scale that is linear to about 20 and logarithmic beyond."""
    return np.asarray(np.arcsinh(x / 20.0), dtype=np.float32)
