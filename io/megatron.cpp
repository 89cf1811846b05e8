#include "io/megatron.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.hpp"

namespace tessera::io {
namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::uint64_t kVersion = 1;
constexpr std::int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr std::int64_t kBatch = 1 << 15;  // table entries read at a time

// Lengths are 32-bit: a longer document is stored as several sequences.
constexpr std::int64_t kLongestSequence = std::int64_t{1} << 30;

struct ElementCode {
  std::uint8_t code;
  DType type;
};
constexpr std::array kElementCodes = {ElementCode{1, DType::u8}, ElementCode{4, DType::i32},
                                      ElementCode{5, DType::i64}, ElementCode{8, DType::u16}};

std::uint8_t code_of(DType type) {
  for (const auto& row : kElementCodes) {
    if (row.type == type) return row.code;
  }
  check_failed("code_of", fmt::format("no element code for {}", to_string(type)));
}

template <typename T>
T value_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void read_table(const File& file, std::int64_t offset, std::span<T> out) {
  file.read(offset, std::as_writable_bytes(out));
}

}  // namespace

fs::path megatron_bin(const fs::path& prefix) { return prefix.string() + ".bin"; }
fs::path megatron_idx(const fs::path& prefix) { return prefix.string() + ".idx"; }

MegatronIndex::MegatronIndex(const fs::path& prefix) : file_(megatron_idx(prefix), OpenMode::read) {
  const std::string name = file_.path().string();
  std::array<std::byte, kHeaderBytes> header;
  file_.read(0, header);
  if (std::memcmp(header.data(), kMagic.data(), kMagic.size()) != 0) {
    throw DataError(fmt::format(
        "{}: does not start with \"MMIDIDX\": not the index of a Megatron dataset", name));
  }
  if (const auto version = value_at<std::uint64_t>(header, 9); version != kVersion) {
    throw DataError(
        fmt::format("{}: byte 9: version {}, only {} is known", name, version, kVersion));
  }
  const auto code = value_at<std::uint8_t>(header, 17);
  const auto row = std::find_if(kElementCodes.begin(), kElementCodes.end(),
                                [&](const ElementCode& r) { return r.code == code; });
  if (row == kElementCodes.end()) {
    throw DataError(fmt::format(
        "{}: byte 17: element code {}; allowed: 1 (u8), 4 (i32), 5 (i64), 8 (u16)", name, code));
  }
  type_ = row->type;

  const std::int64_t size = file_.size();
  const auto sequences = value_at<std::uint64_t>(header, 18);
  const auto entries = value_at<std::uint64_t>(header, 26);
  const auto limit = static_cast<std::uint64_t>(size);
  // Each count is bounded by the file's size first, so that the products below cannot overflow.
  const bool possible = sequences <= limit && entries <= limit;
  sequences_ = possible ? static_cast<std::int64_t>(sequences) : 0;
  document_entries_ = possible ? static_cast<std::int64_t>(entries) : 0;
  const std::int64_t expected = kHeaderBytes + 12 * sequences_ + 8 * document_entries_;
  if (!possible || (size != expected && size != expected + sequences_)) {
    throw DataError(
        fmt::format("{}: {} bytes do not fit the {} sequences and {} document entries "
                    "that its header states: truncated or damaged",
                    name, size, sequences, entries));
  }
  if (document_entries_ == 0) {
    throw DataError(fmt::format("{}: byte 26: no document entries, at least 1 expected", name));
  }
}

void MegatronIndex::for_each_sequence(std::int64_t bin_bytes,
                                      const std::function<void(const Sequence&)>& visit) const {
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(std::min(kBatch, sequences_)));
  std::vector<std::int64_t> pointers(lengths.size());
  for (std::int64_t first = 0; first < sequences_; first += kBatch) {
    const auto count = static_cast<std::size_t>(std::min(kBatch, sequences_ - first));
    read_table(file_, kHeaderBytes + 4 * first, std::span(lengths).first(count));
    read_table(file_, kHeaderBytes + 4 * sequences_ + 8 * first, std::span(pointers).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      const Sequence sequence{lengths[i], pointers[i]};
      if (sequence.length < 0 || sequence.pointer < 0 || sequence.pointer > bin_bytes ||
          sequence.length > (bin_bytes - sequence.pointer) / size_of(type_)) {
        throw DataError(fmt::format(
            "{}: sequence {} of {} tokens at byte {} does not lie within the {} bytes of the .bin "
            "file",
            file_.path().string(), first + static_cast<std::int64_t>(i), sequence.length,
            sequence.pointer, bin_bytes));
      }
      visit(sequence);
    }
  }
}

void MegatronIndex::for_each_document_end(const std::function<void(std::int64_t)>& visit) const {
  const std::int64_t start = kHeaderBytes + 12 * sequences_;
  std::vector<std::int64_t> entries(static_cast<std::size_t>(std::min(kBatch, document_entries_)));
  std::int64_t previous = 0;
  for (std::int64_t first = 0; first < document_entries_; first += kBatch) {
    const auto count = static_cast<std::size_t>(std::min(kBatch, document_entries_ - first));
    read_table(file_, start + 8 * first, std::span(entries).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t index = first + static_cast<std::int64_t>(i), entry = entries[i];
      const bool ends = index + 1 == document_entries_;
      if (entry < previous || (index == 0 && entry != 0) || (ends && entry != sequences_)) {
        throw DataError(
            fmt::format("{}: document entry {} is {}; the entries must ascend from 0 "
                        "to the {} sequences",
                        file_.path().string(), index, entry, sequences_));
      }
      if (index > 0) visit(entry);
      previous = entry;
    }
  }
}

namespace {

/// Entries of a table in a file, some of which are read at once.
template <typename T>
class TableWindow {
 public:
  TableWindow(const File& file, std::int64_t offset, std::int64_t entries)
      : file_(file), offset_(offset), entries_(entries) {}
  T operator[](std::int64_t index) {
    if (index < first_ || index >= first_ + std::ssize(window_)) {
      first_ = index;
      window_.resize(static_cast<std::size_t>(std::min<std::int64_t>(64, entries_ - index)));
      read_table(file_, offset_ + size_of_entry() * index, std::span(window_));
    }
    return window_[static_cast<std::size_t>(index - first_)];
  }

 private:
  static constexpr std::int64_t size_of_entry() { return sizeof(T); }
  const File& file_;
  std::int64_t offset_, entries_, first_ = 0;
  std::vector<T> window_;
};

}  // namespace

std::vector<std::int64_t> MegatronIndex::document_ends(Range sequences, Range bytes) const {
  const auto first_of = [](Range range, const auto& holds) {  // range.end if it holds nowhere
    while (!range.empty()) {
      const std::int64_t middle = range.begin + range.count() / 2;
      if (holds(middle)) {
        range.end = middle;
      } else {
        range.begin = middle + 1;
      }
    }
    return range.begin;
  };
  TableWindow<std::int32_t> lengths(file_, kHeaderBytes, sequences_);
  TableWindow<std::int64_t> pointers(file_, kHeaderBytes + 4 * sequences_, sequences_),
      documents(file_, kHeaderBytes + 12 * sequences_, document_entries_);
  // Empty sequences may point anywhere: they are where the next one that is not empty begins.
  const auto filled = [&](std::int64_t index) {
    while (lengths[index] == 0 && index + 1 < sequences_) ++index;
    return index;
  };
  const auto end_of = [&](std::int64_t index) {
    return pointers[index] + lengths[index] * size_of(type_);
  };
  std::int64_t at =
      filled(first_of(sequences, [&](std::int64_t s) { return end_of(filled(s)) > bytes.begin; }));
  std::int64_t entry =
      first_of({0, document_entries_}, [&](std::int64_t d) { return documents[d] > at; });
  std::vector<std::int64_t> ends;
  while (at < sequences.end && end_of(at) <= bytes.end) {
    const std::int64_t next = at + 1 < sequences_ ? filled(at + 1) : sequences_;
    if (entry < document_entries_ && documents[entry] <= next) ends.push_back(end_of(at));
    while (entry < document_entries_ && documents[entry] <= next) ++entry;
    at = next;
  }
  return ends;
}

MegatronWriter::MegatronWriter(fs::path prefix, std::int64_t vocab)
    : prefix_(std::move(prefix)),
      type_(vocab <= 65536 ? DType::u16 : DType::i32),
      bin_(megatron_bin(prefix_)) {}

void MegatronWriter::append(std::span<const std::int32_t> tokens) {
  if (type_ == DType::u16) {
    const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
    bin_.append(std::as_bytes(std::span(narrow)));
  } else {
    bin_.append(std::as_bytes(tokens));
  }
  open_length_ += static_cast<std::int64_t>(tokens.size());
  for (; open_length_ > kLongestSequence; open_length_ -= kLongestSequence) {
    lengths_.push_back(static_cast<std::int32_t>(kLongestSequence));
  }
}

void MegatronWriter::end_document() {
  lengths_.push_back(static_cast<std::int32_t>(std::exchange(open_length_, 0)));
  documents_.push_back(static_cast<std::int64_t>(lengths_.size()));
}

void MegatronWriter::append_pair(const fs::path& prefix) {
  TESSERA_CHECK(open_length_ == 0, "a document of {} tokens is open", open_length_);
  const MegatronIndex index(prefix);
  TESSERA_CHECK(index.type() == type_, "{} appended to {}", to_string(index.type()),
                to_string(type_));
  const File bin(megatron_bin(prefix), OpenMode::read);
  const std::int64_t bytes = bin.size();
  const auto base = static_cast<std::int64_t>(lengths_.size());
  std::int64_t copied = 0;
  index.for_each_sequence(bytes, [&](const MegatronIndex::Sequence& sequence) {
    TESSERA_CHECK(sequence.pointer == copied, "{}: sequences are not contiguous", prefix.string());
    copied += sequence.length * size_of(type_);
    lengths_.push_back(static_cast<std::int32_t>(sequence.length));
  });
  index.for_each_document_end([&](std::int64_t end) { documents_.push_back(base + end); });
  std::vector<std::byte> buffer(std::size_t{4} << 20);
  for (std::int64_t done = 0; done < copied;) {
    const auto count = std::min(static_cast<std::int64_t>(buffer.size()), copied - done);
    const auto piece = std::span(buffer).first(static_cast<std::size_t>(count));
    bin.read(done, piece);
    bin_.append(piece);
    done += count;
  }
}

void MegatronWriter::publish() {
  TESSERA_CHECK(open_length_ == 0, "a document of {} tokens is open", open_length_);
  AtomicFile idx(megatron_idx(prefix_));
  idx.append(kMagic);
  idx.append_value(kVersion);
  idx.append_value(code_of(type_));
  idx.append_value(static_cast<std::uint64_t>(lengths_.size()));
  idx.append_value(static_cast<std::uint64_t>(documents_.size()));
  idx.append(std::as_bytes(std::span(lengths_)));
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths_) {
    idx.append_value(pointer);
    pointer += length * size_of(type_);
  }
  idx.append(std::as_bytes(std::span(documents_)));
  // An old index must never describe the new tokens.
  remove_durably(megatron_idx(prefix_));
  bin_.publish();
  idx.publish();
}

}  // namespace tessera::io
