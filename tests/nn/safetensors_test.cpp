// Safetensors files: bit-exact round trips, zero-copy reading, damaged and hostile headers.
#include <glade/nn/safetensors.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/random/random.h>

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/testing.h"

namespace glade::nn {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("glade_safetensors_" + std::to_string(::getpid()) + "_" +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const char* name = "x.safetensors") const { return (folder_ / name).string(); }

  void write_bytes(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::string read_bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// A file of this header and so many bytes of data.
  void write_file(const std::string& header, std::size_t data) const {
    std::string bytes(8, '\0');
    const std::uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    write_bytes(bytes + header + std::string(data, '\0'));
  }
  /// Whether a file of this header and so many bytes is refused with `message`.
  ::testing::AssertionResult refuses(const std::string& header, std::size_t data, const std::string& message) const {
    write_file(header, data);
    return throws_with<CheckpointError>([&] { SafetensorsFile file(path()); }, message);
  }

  fs::path folder_;
};

::testing::AssertionResult identical(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) return ::testing::AssertionFailure() << "another type or shape";
  const Tensor x = contiguous_data(a);
  const std::size_t bytes = static_cast<std::size_t>(a.numel()) * dtype_size(a.dtype());
  if (bytes > 0 && std::memcmp(x.raw_data(), b.raw_data(), bytes) != 0) return ::testing::AssertionFailure() << "differs";
  return ::testing::AssertionSuccess();
}

/// The file that is mapped at this address.
std::string mapped_file(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    if (at >= begin && at < end) return line.find('/') == std::string::npos ? "" : line.substr(line.find('/'));
  }
  return "";
}

TEST_F(Safetensors, KeepEveryTypeAndShapeBitForBit) {
  StateDict saved;
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::int32,
                            DType::uint8, DType::boolean})
    saved.emplace("of." + std::string(dtype_name(dtype)), to(uniform({3, 5}, 0, 200), dtype));
  saved.emplace("scalar", full({}, 3.5));
  saved.emplace("empty", zeros({0, 4}));
  saved.emplace("strided", random_tensor({4, 6}).as_strided({6, 2}, {1, 12}, 0));
  saved.emplace("dims", random_tensor({1, 2, 1, 2, 1, 2, 1, 2}));
  saved.emplace("name with \"quotes\" and \xc3\xa4", zeros({1}));
  save_safetensors(path(), saved, {{"format", "pt"}});

  const SafetensorsFile file(path());
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  const StateDict loaded = file.read_all();
  ASSERT_EQ(loaded.size(), saved.size());
  for (const auto& [name, x] : saved) EXPECT_TRUE(identical(x, loaded.at(name))) << name;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);  // no temporary file stays
}

TEST_F(Safetensors, AreWrittenAsTheFormatSays) {
  save_safetensors(path(), {{"b", Tensor::from_vector<std::uint8_t>({7, 8, 9})}, {"a", Tensor::from_vector<float>({1, 2})}});
  const std::string header =
      R"({"a":{"data_offsets":[0,8],"dtype":"F32","shape":[2]},"b":{"data_offsets":[8,11],"dtype":"U8","shape":[3]}})";
  const std::string bytes = read_bytes();
  ASSERT_EQ(bytes.size(), 8 + (header.size() + 7) / 8 * 8 + 11);
  EXPECT_EQ(static_cast<std::size_t>(bytes[0]), (header.size() + 7) / 8 * 8);
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  EXPECT_EQ(bytes.substr(bytes.size() - 3), "\x07\x08\x09");
}

TEST_F(Safetensors, AreReadWithoutACopyThatReachesTheFile) {
  save_safetensors(path(), {{"x", ones({4})}, {"y", zeros({4})}});
  const std::string before = read_bytes();
  Tensor x;
  {
    const SafetensorsFile file(path());
    x = file.read("x");
    EXPECT_EQ(mapped_file(x.raw_data()), path());
  }
  fs::remove(path());
  write_bytes(before);
  fill_(x, 5);  // the mapping lives as long as the tensor, even without the file
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(4, 5));
  EXPECT_EQ(read_bytes(), before);
}

TEST_F(Safetensors, MayHoldTensorsThatAreNotAligned) {
  write_file(R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                 "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}})",
             9);
  EXPECT_EQ(SafetensorsFile(path()).read("b").to_vector<float>(), std::vector<float>(2, 0));
}

TEST_F(Safetensors, WithoutTensorsAreFiles) {
  save_safetensors(path(), StateDict{});
  EXPECT_TRUE(SafetensorsFile(path()).tensors().empty());
}

TEST_F(Safetensors, RefuseFilesThatAreNone) {
  EXPECT_TRUE(throws_with<CheckpointError>([&] { SafetensorsFile file(path()); }, path() + ": cannot be opened: No such file"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { SafetensorsFile file(folder_.string()); }, folder_.string() + ": "));
  for (const char* bytes : {"", "1234567"}) {
    write_bytes(bytes);
    EXPECT_TRUE(throws_with<CheckpointError>([&] { SafetensorsFile file(path()); }, path() + ": has "));
  }
  write_bytes(std::string(1000, 'x'));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { SafetensorsFile file(path()); }, path() + ": not a safetensors file"));
}

TEST_F(Safetensors, RefuseBadHeaders) {
  EXPECT_TRUE(refuses("", 0, "its header is no JSON object"));
  EXPECT_TRUE(refuses("[]", 0, "its header is no JSON object"));
  EXPECT_TRUE(refuses("{\"a\": {}", 0, "its header is no JSON object"));
  EXPECT_TRUE(refuses("{\"\xff\": {}}", 0, "its header is no JSON object"));
  EXPECT_TRUE(refuses("{} x", 0, "its header is no JSON object"));
  EXPECT_TRUE(refuses(std::string(100000, '['), 0, "nested too deeply"));
  EXPECT_TRUE(refuses(R"({"__metadata__": 3})", 0, "__metadata__: 3 is not an object"));
  EXPECT_TRUE(refuses(R"({"__metadata__": {"k": 3}})", 0, "'k' is not a string"));
  EXPECT_TRUE(refuses(R"({"a": 3})", 0, "a: 3 is not an object"));
  EXPECT_TRUE(refuses(R"({"a": {"shape": [], "data_offsets": [0, 4]}})", 4, "a: dtype is missing"));
  EXPECT_TRUE(refuses(R"({"a": {"dtype": "F32", "data_offsets": [0, 4]}})", 4, "a: shape is missing"));
  EXPECT_TRUE(refuses(R"({"a": {"dtype": "F32", "shape": []}})", 4, "a: data_offsets is missing"));
  const std::string x = R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})";
  EXPECT_TRUE(refuses("{\"a\": " + x + ", \"a\": " + x + "}", 4, "has \"a\" twice"));
  EXPECT_TRUE(refuses(R"({"a": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4, "\"dtype\" twice"));
  EXPECT_TRUE(refuses(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "x": 1}})", 4, "unknown field 'x'"));
}

TEST_F(Safetensors, RefuseLargeHeadersAtOnce) {
  std::string zeros = "[0";
  for (int i = 0; i < 500'000; ++i) zeros += ",0";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(refuses(zeros + "]", 0, "its header is no JSON object"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "minutes where it is quadratic";
}

TEST_F(Safetensors, RefuseBadTensors) {
  const auto tensor = [](const char* dtype, const std::string& shape, const char* offsets) {
    return R"({"a": {"dtype": )" + std::string(dtype) + ", \"shape\": " + shape + ", \"data_offsets\": " + offsets + "}}";
  };
  EXPECT_TRUE(refuses(tensor("\"F8_E4M3\"", "[1]", "[0, 1]"), 1, "a: its dtype \"F8_E4M3\" is none of glade's"));
  EXPECT_TRUE(refuses(tensor("32", "[1]", "[0, 4]"), 4, "its dtype 32"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "1", "[0, 4]"), 4, "its shape is 1"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0, 4]"), 4, "up to 8 sizes"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[-1]", "[0, 4]"), 4, "-1 is not a size"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[1.5]", "[0, 4]"), 4, "1.5 is not a size"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[1e30]", "[0, 4]"), 4, "is not a size"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[18446744073709551615]", "[0, 4]"), 4, "is not a size"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[4294967296, 4294967296]", "[0, 4]"), 4, "its size overflows"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[0, 4294967296, 4294967296]", "[0, 0]"), 0, "its size overflows"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[1]", "[0]"), 4, "expected a pair"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[1]", "[4, 0]"), 4, "takes 4 bytes"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[1]", "[0, 8]"), 8, "takes 4 bytes"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[1000000000000]", "[0, 4000000000000]"), 4, "ends at byte 4000000000000 of 4"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[1]", "[4, 8]"), 8, "begins at byte 4, but the tensor before ends at 0"));
  EXPECT_TRUE(refuses(tensor("\"F32\"", "[1]", "[0, 4]"), 8, "end at byte 4 of 8"));
  EXPECT_TRUE(refuses(R"({"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
                          "b": {"dtype": "U8", "shape": [3], "data_offsets": [2, 5]}})",
                      5, "b: begins at byte 2, but the tensor before ends at 3"));
  write_file(tensor("\"BOOL\"", "[2]", "[0, 2]"), 2);
  std::string bytes = read_bytes();
  bytes.back() = 2;
  write_bytes(bytes);
  EXPECT_TRUE(throws_with<CheckpointError>([&] { SafetensorsFile(path()).read("a"); }, "no bools"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { SafetensorsFile(path()).read("b"); }, "b: is not in the file"));
}

TEST_F(Safetensors, TruncatedFilesAreErrors) {
  save_safetensors(path(), {{"x", random_tensor({10, 10})}, {"y", random_tensor({7})}});
  const std::string whole = read_bytes();
  for (std::size_t size = 0; size < whole.size(); size += 19) {
    write_bytes(whole.substr(0, size));
    EXPECT_TRUE(throws_with<CheckpointError>([&] { SafetensorsFile file(path()); }, path() + ": ")) << size;
  }
}

TEST_F(Safetensors, ADamagedByteInTheHeaderIsAnErrorOrHarmless) {
  const StateDict saved{{"x", random_tensor({10, 10})}, {"y", random_tensor({7}, kCPU, DType::float32)}};
  save_safetensors(path(), saved);
  const std::string whole = read_bytes();
  int errors = 0;
  for (std::size_t i = 0; i < whole.size() - 828; ++i) {
    std::string damaged = whole;
    damaged[i] ^= static_cast<char>(1 << (i % 8));
    write_bytes(damaged);
    try {
      for (const auto& [name, x] : SafetensorsFile(path()).read_all()) {
        EXPECT_LE(x.numel() * static_cast<std::int64_t>(dtype_size(x.dtype())), 828);
        x.to_vector<double>();
      }
    } catch (const CheckpointError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 100);
}

TEST_F(Safetensors, RefuseToBeWrittenWrongly) {
  EXPECT_TRUE(throws_with<ValueError>([&] { save_safetensors(path(), {{"__metadata__", zeros({1})}}); }, "__metadata__"));
  const TensorInfos infos{{"x", {DType::float32, {2}}}};
  EXPECT_TRUE(throws_with<ValueError>([&] { save_safetensors(path(), infos, [](const std::string&) { return zeros({3}); }); },
                                      "x is float32 [3], announced as float32 [2]"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { save_safetensors(path("gone/x"), StateDict{}); }, "No such file or directory"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace glade::nn
