#include "io/megatron.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "io/system_calls.hpp"

namespace tessera::io {
namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::uint64_t kVersion = 1;
constexpr std::int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr std::int64_t kBatch = 1 << 15;  // table entries read at a time

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

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

/// What a file is called until it is published.
fs::path unnamed(const fs::path& path) { return path.string() + ".tmp"; }

template <typename T>
void narrow_to(std::span<const std::int32_t> elements, std::span<std::byte> out) {
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const auto element = static_cast<T>(elements[i]);
    std::memcpy(out.data() + i * sizeof(T), &element, sizeof(T));
  }
}

void narrow(std::span<const std::int32_t> elements, DType type, std::span<std::byte> out) {
  switch (type) {
    case DType::u8: return narrow_to<std::uint8_t>(elements, out);
    case DType::u16: return narrow_to<std::uint16_t>(elements, out);
    case DType::i32: return narrow_to<std::int32_t>(elements, out);
    default: check_failed("narrow", std::string(to_string(type)));
  }
}

std::array<std::byte, kHeaderBytes> header(DType type, const MegatronExtent& all) {
  std::array<std::byte, kHeaderBytes> bytes{};
  const auto put = [&](std::size_t offset, const auto& value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
  };
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put(9, kVersion);
  put(17, code_of(type));
  put(18, static_cast<std::uint64_t>(all.sequences));
  put(26, static_cast<std::uint64_t>(all.documents + 1));
  return bytes;
}

/// Writes `count` entries of a table from a byte of the file on: entry i is value(i), asked for in
/// order.
template <typename Value>
void write_batches(File& file, std::int64_t offset, std::int64_t count, const Value& value) {
  std::vector<std::int64_t> batch;
  for (std::int64_t first = 0; first < count; first += std::ssize(batch)) {
    batch.resize(static_cast<std::size_t>(std::min(kBatch, count - first)));
    for (std::size_t i = 0; i < batch.size(); ++i)
      batch[i] = value(static_cast<std::size_t>(first) + i);
    file.write(offset + 8 * first, std::as_bytes(std::span(batch)));
  }
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
    while (index < sequences_ && lengths[index] == 0) ++index;
    return index;
  };
  const auto end_of = [&](std::int64_t index) {
    return pointers[index] + lengths[index] * size_of(type_);
  };
  const auto ends_behind = [&](std::int64_t index) {  // nothing but empty ones: all ends are before
    const std::int64_t next = filled(index);
    return next == sequences_ || end_of(next) > bytes.begin;
  };
  std::int64_t at = filled(first_of(sequences, ends_behind));
  std::int64_t entry =
      first_of({0, document_entries_}, [&](std::int64_t d) { return documents[d] > at; });
  std::vector<std::int64_t> ends;
  while (at < sequences.end && end_of(at) <= bytes.end) {
    const std::int64_t next = filled(at + 1);
    if (entry < document_entries_ && documents[entry] <= next) ends.push_back(end_of(at));
    while (entry < document_entries_ && documents[entry] <= next) ++entry;
    at = next;
  }
  return ends;
}

MegatronExtent& MegatronExtent::operator+=(const MegatronExtent& other) {
  elements += other.elements;
  sequences += other.sequences;
  documents += other.documents;
  return *this;
}

MegatronShare::MegatronShare(fs::path prefix, DType type, std::int64_t index)
    : prefix_(std::move(prefix)),
      type_(type),
      index_(index),
      table_(index == 0 ? unnamed(megatron_idx(prefix_)) : fs::path()),
      elements_(index == 0 ? unnamed(megatron_bin(prefix_))
                           : unnamed(fmt::format("{}.part{:05}.bin", prefix_.string(), index)),
                OpenMode::create) {
  if (index_ == 0) File(table_, OpenMode::create).close();
}

MegatronShare::~MegatronShare() {
  system_calls::remove_tree(elements_.path());
  if (index_ == 0) system_calls::remove_tree(table_);
}

void MegatronShare::append(std::span<const std::int32_t> elements) {
  const std::size_t before = buffer_.size();
  buffer_.resize(before + elements.size() * static_cast<std::size_t>(size_of(type_)));
  narrow(elements, type_, std::span(buffer_).subspan(before));
  open_length_ += static_cast<std::int64_t>(elements.size());
  for (; open_length_ > kLongestSequence; open_length_ -= kLongestSequence) {
    lengths_.push_back(static_cast<std::int32_t>(kLongestSequence));
  }
  if (buffer_.size() >= kBufferBytes) flush();
}

void MegatronShare::flush() {
  elements_.write(written_, buffer_);
  written_ += static_cast<std::int64_t>(buffer_.size());
  buffer_.clear();
}

void MegatronShare::end_document() {
  lengths_.push_back(static_cast<std::int32_t>(std::exchange(open_length_, 0)));
  document_ends_.push_back(std::ssize(lengths_));
}

MegatronExtent MegatronShare::extent() const {
  TESSERA_CHECK(open_length_ == 0, "a document of {} elements is open", open_length_);
  return {.elements = (written_ + std::ssize(buffer_)) / size_of(type_),
          .sequences = std::ssize(lengths_),
          .documents = std::ssize(document_ends_)};
}

void MegatronShare::place(const MegatronExtent& before, const MegatronExtent& all) {
  place_elements(before);
  place_index(before, all);
}

void MegatronShare::place_elements(const MegatronExtent& before) {
  flush();
  if (index_ == 0) return elements_.sync();
  File all(unnamed(megatron_bin(prefix_)), OpenMode::update);
  const std::int64_t begin = before.elements * size_of(type_);
  buffer_.resize(kBufferBytes);
  for (std::int64_t done = 0; done < written_;) {
    const auto count = std::min(static_cast<std::int64_t>(buffer_.size()), written_ - done);
    const auto piece = std::span(buffer_).first(static_cast<std::size_t>(count));
    elements_.read(done, piece);
    all.write(begin + done, piece);
    done += count;
  }
  buffer_.clear();
  all.sync();
}

void MegatronShare::place_index(const MegatronExtent& before, const MegatronExtent& all) {
  File idx(unnamed(megatron_idx(prefix_)), OpenMode::update);
  constexpr std::int64_t kFirst = 0;
  const std::int64_t pointers = kHeaderBytes + 4 * all.sequences,
                     documents = pointers + 8 * all.sequences;
  if (index_ == 0) {
    idx.write(0, header(type_, all));
    idx.write(documents, std::as_bytes(std::span(&kFirst, 1)));
  }
  idx.write(kHeaderBytes + 4 * before.sequences, std::as_bytes(std::span(lengths_)));
  std::int64_t at = before.elements * size_of(type_), first = before.sequences;
  write_batches(idx, pointers + 8 * first, std::ssize(lengths_), [&](std::size_t i) {
    return std::exchange(at, at + lengths_[i] * size_of(type_));
  });
  write_batches(idx, documents + 8 * (before.documents + 1), std::ssize(document_ends_),
                [&](std::size_t i) { return first + document_ends_[i]; });
  idx.sync();
}

void MegatronShare::publish() {
  TESSERA_CHECK(index_ == 0, "share {} publishes", index_);
  for (const fs::path& path : {megatron_bin(prefix_), megatron_idx(prefix_)}) {
    rename_path(unnamed(path), path);
    sync_directory(path.has_parent_path() ? path.parent_path() : ".");
  }
}

DType token_type(std::int64_t vocab) { return vocab <= 65536 ? DType::u16 : DType::i32; }

MegatronWriter::MegatronWriter(const fs::path& prefix, std::int64_t vocab)
    : prefix_(prefix), share_(prefix, token_type(vocab), 0) {}

void MegatronWriter::publish() {
  share_.place({}, share_.extent());
  remove_durably(megatron_idx(prefix_));
  share_.publish();
}

}  // namespace tessera::io
