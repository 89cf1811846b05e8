// Megatron-LM's indexed dataset: PREFIX.bin holds token ids and nothing else; PREFIX.idx says
// where each sequence lies in it:
//   "MMIDIDX\0\0", u64 version = 1, u8 element code, u64 S, u64 D,
//   i32 length[S] in tokens, i64 pointer[S] in bytes, i64 document[D], optionally i8 mode[S]
// (little-endian, packed). document[] starts at 0, ascends and ends at S: document d is made of the
// sequences document[d] .. document[d + 1].
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "core/math.hpp"
#include "io/file.hpp"

namespace tessera::io {

std::filesystem::path megatron_bin(const std::filesystem::path& prefix);
std::filesystem::path megatron_idx(const std::filesystem::path& prefix);

/// PREFIX.idx, its header checked against the size of the file when opened; DataError otherwise.
/// The tables are streamed, never held.
class MegatronIndex {
 public:
  explicit MegatronIndex(const std::filesystem::path& prefix);

  DType type() const { return type_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return document_entries_ - 1; }

  struct Sequence {
    std::int64_t length = 0;   // tokens
    std::int64_t pointer = 0;  // bytes
  };
  /// Calls `visit` for every sequence, in order; each is checked to lie within `bin_bytes`.
  void for_each_sequence(std::int64_t bin_bytes,
                         const std::function<void(const Sequence&)>& visit) const;
  /// Calls `visit` with the first sequence after each document; checks the table's order.
  void for_each_document_end(const std::function<void(std::int64_t)>& visit) const;
  /// Bytes of the .bin at which documents end, of those that end in (bytes.begin, bytes.end], in
  /// ascending order, each once. `sequences` lie in the .bin one after another; bytes.begin is
  /// within them. Tables are searched in the file: nothing is held, however many documents there
  /// are.
  std::vector<std::int64_t> document_ends(Range sequences, Range bytes) const;

 private:
  File file_;
  DType type_ = DType::u16;
  std::int64_t sequences_ = 0;
  std::int64_t document_entries_ = 0;
};

/// Writes a pair: 16-bit tokens if the vocabulary allows it, else 32-bit. Both files appear when
/// publish() returns, the index last.
class MegatronWriter {
 public:
  MegatronWriter(std::filesystem::path prefix, std::int64_t vocab);

  /// More tokens of the current document.
  void append(std::span<const std::int32_t> tokens);
  void end_document();
  /// All documents of another pair with the same element type.
  void append_pair(const std::filesystem::path& prefix);
  void publish();

  std::int64_t tokens() const { return bin_.position() / size_of(type_); }
  std::int64_t documents() const { return static_cast<std::int64_t>(documents_.size()) - 1; }

 private:
  std::filesystem::path prefix_;
  DType type_;
  AtomicFile bin_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> documents_{0};
  std::int64_t open_length_ = 0;  // tokens of the sequence that is being written
};

}  // namespace tessera::io
