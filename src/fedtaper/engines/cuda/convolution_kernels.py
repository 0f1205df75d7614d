"""Many clients' 3 x 3 convolutions in one kernel: every client its own images and weights.

A convolution of channels-last images is a matrix product whose left side is read in place
(pixel by pixel, nine shifts), so nothing is unfolded. Images are (clients * batch, channels,
height, width) channels-last, weights (clients, out, in, 3, 3) with ``in`` innermost; both
channel counts are multiples of 16. Sums are made in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fedtaper.engines.cuda.convolution import room


@triton.jit
def _product(
    x, w, out, rows, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEEP: tl.constexpr,
    WIDE: tl.constexpr, BACK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):  # fmt: skip
    """One tile (pixels, channels out) of one client; BACK: towards the input instead."""
    tiles = WIDE // COLUMNS
    tile, client = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = (tile // tiles) * ROWS + tl.arange(0, ROWS)
    column = (tile % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    down, across = (row // WIDTH) % HEIGHT, row % WIDTH
    x += client * rows * DEEP
    w += client * (9 * DEEP * WIDE)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(9 * (DEEP // INNER)):
        tap = k // (DEEP // INNER)
        first = (k % (DEEP // INNER)) * INNER
        r, s = tap // 3 - 1, tap % 3 - 1
        there = (down + r >= 0) & (down + r < HEIGHT) & (across + s >= 0) & (across + s < WIDTH)
        there &= row < rows
        place = (row + r * WIDTH + s)[:, None] * DEEP + (first + inner)[None, :]
        left = tl.load(x + place, mask=there[:, None], other=0.0)
        if BACK:
            right = w + ((first + inner)[:, None] * 9 + (8 - tap)) * WIDE + column[None, :]
        else:
            right = w + (column[None, :] * 9 + tap) * DEEP + (first + inner)[:, None]
        total = tl.dot(left, tl.load(right), total, input_precision="ieee")  # float32 as such
    place = out + client * rows * WIDE + row[:, None] * WIDE + column[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=(row < rows)[:, None])


@triton.jit
def _weights(
    x, dy, out, rows, clients, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEEP: tl.constexpr,
    WIDE: tl.constexpr, SHARE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):  # fmt: skip
    """One tile (channels out, channels in) of one tap, client and share of the pixels."""
    tiles = DEEP // COLUMNS
    tile, part, client = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    tap = tile % 9
    tile = tile // 9
    wide = (tile // tiles) * ROWS + tl.arange(0, ROWS)
    deep = (tile % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    r, s = tap // 3 - 1, tap % 3 - 1
    x += client * rows * DEEP
    dy += client * rows * WIDE
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, SHARE, INNER):
        row = part * SHARE + start + tl.arange(0, INNER)
        down, across = (row // WIDTH) % HEIGHT, row % WIDTH
        there = (down + r >= 0) & (down + r < HEIGHT) & (across + s >= 0) & (across + s < WIDTH)
        there &= row < rows
        left = tl.load(dy + row[:, None] * WIDE + wide[None, :], mask=there[:, None], other=0.0)
        place = (row + r * WIDTH + s)[:, None] * DEEP + deep[None, :]
        right = tl.load(x + place, mask=there[:, None], other=0.0)
        total = tl.dot(tl.trans(left), right, total, input_precision="ieee")
    client += part * clients
    place = out + ((client * WIDE + wide[:, None]) * 9 + tap) * DEEP + deep[None, :]
    tl.store(place, total.to(out.dtype.element_ty))


def _sizes(x: torch.Tensor, w: torch.Tensor) -> tuple[int, ...]:
    """Clients, pixels a client, height, width, channels in, channels out."""
    clients, wide, deep = w.shape[:3]
    samples, _, height, width = x.shape
    return clients, samples // clients * height * width, height, width, deep, wide


def _tile(length: int, most: int) -> int:
    """The largest power of two that divides a number of channels, up to ``most``."""
    return min(length & -length, most)


def product_tiles(deep: int, wide: int) -> tuple[int, ...]:
    """Rows, columns and inner length of a tile, warps, stages: the best of seven on an H200."""
    return 128, _tile(wide, 128), _tile(deep, 64), 8, 3


def weight_tiles(deep: int, wide: int) -> tuple[int, ...]:
    """Rows, columns and inner length of a tile, warps, stages, pixels a block sums."""
    if min(deep, wide) < 128:  # few tiles: more shares of the pixels
        return _tile(wide, 64), _tile(deep, 64), 64, 4, 4, 4096
    return 128, 128, 64, *((8, 4) if wide == 128 else (4, 3)), 2**16


def multiplied(x: torch.Tensor, w: torch.Tensor, back: bool) -> torch.Tensor:
    """Each client's convolution, or with ``back`` the gradient towards its images."""
    clients, rows, height, width, deep, wide = _sizes(x, w)
    if back:
        deep, wide = wide, deep
    out = room(x, wide)
    tall, columns, inner, warps, stages = product_tiles(deep, wide)
    grid = (triton.cdiv(rows, tall) * (wide // columns), clients)
    _product[grid](
        x, w, out, rows, height, width, deep, wide, back, tall, columns, inner,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def gradient(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Each client's gradient towards its weights, shaped as they are."""
    clients, rows, height, width, deep, wide = _sizes(x, w)
    tall, columns, inner, warps, stages, most = weight_tiles(deep, wide)
    parts = triton.cdiv(rows, most)
    share = triton.cdiv(triton.cdiv(rows, parts), inner) * inner
    kind = w.dtype if parts == 1 else torch.float32
    out = torch.empty((parts, clients, wide, 3, 3, deep), dtype=kind, device=x.device)
    grid = (9 * (wide // tall) * (deep // columns), parts, clients)
    _weights[grid](
        x, dy, out, rows, clients, height, width, deep, wide, share, tall, columns, inner,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    whole = out[0] if parts == 1 else out.sum(0).to(w.dtype)
    return whole.permute(0, 1, 4, 2, 3)
