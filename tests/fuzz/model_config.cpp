// A Hugging Face config.json. What is written for the model that it describes describes the same.
#include "io/hf_config.hpp"

#include "support/temporary_directory.hpp"
#include "target.hpp"

namespace tessera::fuzz {

const ExitCode kRefusal = ExitCode::data;

void read(const std::string& input) {
  static const test::TemporaryDirectory directory;
  const auto path = directory / "config.json";
  test::write_file(path, input);
  const io::HfArchitecture architecture = io::read_hf_config(path).architecture;
  const std::string written =
      io::write_hf_config(architecture, DType::bf16, {.begin = 5, .end = 5});
  test::write_file(path, written);
  certainly([&] {
    TESSERA_CHECK(io::read_hf_config(path).architecture == architecture, "written as {}", written);
  });
}

}  // namespace tessera::fuzz
