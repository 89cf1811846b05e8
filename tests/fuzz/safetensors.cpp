// A safetensors file: its header, then every tensor of floating-point numbers.
#include "io/safetensors.hpp"

#include "support/temporary_directory.hpp"
#include "target.hpp"

namespace tessera::fuzz {

const ExitCode kRefusal = ExitCode::data;

void read(const std::string& input) {
  static const test::TemporaryDirectory directory;
  const auto path = directory / "t.safetensors";
  test::write_file(path, input);
  const io::SafetensorsFile file(path);
  certainly([&] {
    for (const auto& [name, tensor] : file.tensors()) {
      if (tensor.type != DType::f32 && tensor.type != DType::bf16 && tensor.type != DType::f16)
        continue;
      std::vector<float> values(static_cast<std::size_t>(tensor.elements));
      file.read(tensor, 0, values);
    }
  });
}

}  // namespace tessera::fuzz
