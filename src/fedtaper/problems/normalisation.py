"""BatchNorm into GroupNorm: the same layer without running statistics."""

from __future__ import annotations

from typing import Any

from fedtaper.core.checks import check_type, check_whole

GROUPS = 32


def groupnorm(module: Any, groups: int = GROUPS) -> Any:
    """The module with every BatchNorm replaced by a GroupNorm, which keeps no statistics.

    The replacement has at most ``groups`` groups, each of at least two channels, and takes
    over scale and shift. The module is changed in place (a BatchNorm itself is returned
    as a new layer).

    >>> from torch import nn
    >>> groupnorm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
    24
    """
    from torch import nn

    check_type("groupnorm", module, nn.Module)
    check_whole("groups", groups)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        channels = module.num_features
        most = max(1, min(groups, channels // 2))  # one channel alone would lose its scale
        count = max(g for g in range(1, most + 1) if channels % g == 0)
        made = nn.GroupNorm(count, channels, eps=module.eps, affine=module.affine)
        if module.affine:
            made.weight, made.bias = module.weight, module.bias
        return made.train(module.training)
    for name, part in module.named_children():
        setattr(module, name, groupnorm(part, groups))
    return module
