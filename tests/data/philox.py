"""Tessera's counter-based random numbers (src/core/random.hpp) in NumPy."""

import numpy as np

# core/random.hpp's RandomPurpose
ROUNDING, JITTER = 5, 7


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011) of arrays of counters."""
    c = [np.asarray(x, np.uint64) for x in counter]
    k = [np.uint64(x) for x in key]
    low = np.uint64(0xffffffff)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k[0], p1 & low,
             (p0 >> np.uint64(32)) ^ c[3] ^ k[1], p0 & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return c


def random_bits(seed, purpose, site, stream, elements):
    """32 random bits for each of the elements of a stream, as int64."""
    one = np.zeros(1, np.uint64)
    key = [int(w[0]) for w in philox([one + site, one, one + purpose, one + 0x7e55e4a],
                                     [seed & 0xffffffff, seed >> 32])][:2]
    index = np.asarray(elements, np.uint64)
    block = index // np.uint64(4)
    words = philox([block & np.uint64(0xffffffff), block >> np.uint64(32),
                    np.full_like(index, stream & 0xffffffff), np.full_like(index, stream >> 32)],
                   key)
    return np.choose((index % np.uint64(4)).astype(int), words).astype(np.int64)
