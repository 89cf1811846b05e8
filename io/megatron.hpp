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

/// How much of a pair there is: of one share, of those before it, or of all.
struct MegatronExtent {
  std::int64_t elements = 0, sequences = 0, documents = 0;

  MegatronExtent& operator+=(const MegatronExtent& other);
  bool operator==(const MegatronExtent&) const = default;
};

/// What one of several writers gives to a pair. All write side by side: each keeps its elements,
/// the first where they belong and the others in a file of their own, until it is known how much
/// precedes them; then each puts what it has into its place. So the pair's bytes are the same for
/// any number of writers. Nothing has its final name before publish(), and what has not got one is
/// removed by the destructor.
class MegatronShare {
 public:
  /// Share `index` of the pair. The first makes the files that all of them write to.
  MegatronShare(std::filesystem::path prefix, DType type, std::int64_t index);
  ~MegatronShare();
  MegatronShare(const MegatronShare&) = delete;
  MegatronShare& operator=(const MegatronShare&) = delete;

  /// More elements of the current document.
  void append(std::span<const std::int32_t> elements);
  void end_document();
  MegatronExtent extent() const;

  /// Writes the share into the files of the pair, durably, once every share has been made.
  void place(const MegatronExtent& before, const MegatronExtent& all);
  /// The first share's, once all are placed: the files get their names, the index last. There must
  /// be no index of that name, which would describe other elements.
  void publish();

 private:
  void flush();
  void place_elements(const MegatronExtent& before);
  void place_index(const MegatronExtent& before, const MegatronExtent& all);

  std::filesystem::path prefix_;
  DType type_;
  std::int64_t index_;
  std::filesystem::path table_;  // of the first share, which makes it; the destructor has no memory
  File elements_;
  std::vector<std::byte> buffer_;
  std::int64_t written_ = 0;  // bytes of elements_
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_ends_;  // in sequences of this share
  std::int64_t open_length_ = 0;             // elements of the sequence that is being written
};

/// The type of tokens: 16 bits if the vocabulary allows it, else 32.
DType token_type(std::int64_t vocab);

/// Writes a pair of tokens alone. Both files appear when publish() returns, the index last.
class MegatronWriter {
 public:
  MegatronWriter(const std::filesystem::path& prefix, std::int64_t vocab);

  /// More tokens of the current document.
  void append(std::span<const std::int32_t> tokens) { share_.append(tokens); }
  void end_document() { share_.end_document(); }
  void publish();

 private:
  std::filesystem::path prefix_;
  MegatronShare share_;
};

}  // namespace tessera::io
