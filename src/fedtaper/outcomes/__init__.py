"""From influence to outcome: fair shares, prices, contributions and error bars."""
