// The GPUs of a node, as the operating system knows them, and who gets which.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::backend {

/// NVIDIA display and compute devices on the PCI bus, whether or not a driver serves them. `root`
/// is where /sys is.
int nvidia_gpus(const std::filesystem::path& root = "/");

/// The cores near the PCI device "0000:1b:00.0"; empty where the system does not say.
std::vector<int> cores_near(const std::string& bus_id, const std::filesystem::path& root = "/");

/// By rank, what it lacks to use a GPU ("n7 has no NVIDIA GPU"), empty where it may use one. Where
/// no rank has one the deck asks for the wrong back end (DeckError); where only some lack one their
/// nodes are at fault, and others may do (DeviceError).
void check_presence(std::span<const std::string> absences);

/// A rank's GPU.
struct GpuOfRank {
  std::string host, bus_id, name;

  std::string text() const;
  static GpuOfRank parse(const std::string& text);
};

/// Why these ranks cannot work together, by rank; nothing where they can. `shared`: several ranks
/// may use one GPU, as tests do.
std::optional<std::string> objection(std::span<const GpuOfRank> ranks, bool shared);

/// What a rank's cuDNN says to the shapes of attention that it is asked for: why it refuses them;
/// nothing where it takes them.
using AttentionAnswers = std::map<std::string, std::string>;
/// Lines for people. Throws DeviceError where two ranks have different answers to one shape: they
/// would round differently.
std::vector<std::string> attention_text(std::span<const AttentionAnswers> ranks);

/// Whether a GPU of this compute capability multiplies numbers of 8 bits, and, where it does not,
/// what to do about a deck that asks for it.
bool multiplies_fp8(int major, int minor);
std::optional<std::string> fp8_objection(const std::string& host, const std::string& name,
                                         int major, int minor);

/// The highest rate of matrix products of a GPU of this name, in flop/s, from its data sheet:
/// dense, of 16-bit elements. 0 where it is not known.
double peak_rate(const std::string& name);

}  // namespace tessera::backend
