// Checksums of ranges of files.
#pragma once

#include "core/hash.hpp"
#include "io/checkpoint_manifest.hpp"
#include "io/file.hpp"

namespace tessera::io {

inline constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

/// xxh3 of bytes [range) of a file, chained over its kPieceBytes pieces: each piece is hashed with
/// the hash of what came before (at the start: `seed`) as its seed.
std::uint64_t hash_range(const File& file, Range range, std::uint64_t seed = 0);

/// Everything in a rank file outside its datasets, in order: HDF5's own structures.
std::uint64_t hash_rest(const File& file, const RankPart& part);

}  // namespace tessera::io
