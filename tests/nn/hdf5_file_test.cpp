// HDF5 files of other programs, and those that mean harm. tests/data/hdf5/make_files.py wrote them.
#include <glade/nn/checkpoint.h>
#include <glade/nn/hdf5_file.h>
#include <glade/nn/linear.h>

#include "fuzz/load_everything.h"
#include "support/process.h"
#include "support/testing.h"

namespace glade::nn {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

const std::string kFolder = std::string(GLADE_TEST_DATA) + "/hdf5/";

/// Whether the elements are 0, 1, 2, ... 99, 0, ...
::testing::AssertionResult counts(const Tensor& x) {
  const auto values = x.to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != static_cast<double>(i % 100)) return ::testing::AssertionFailure() << "element " << i << " is " << values[i];
  return ::testing::AssertionSuccess();
}

class ForeignFile : public ::testing::TestWithParam<const char*> {
 protected:
  /// A part of the files: good_<version>_<part>.h5.
  static HDF5File open(const std::string& part) { return HDF5File(kFolder + "good_" + GetParam() + '_' + part + ".h5"); }
  /// Its entries by name, all of which can be read.
  static std::map<std::string, HDF5Entry> entries_of(const HDF5File& file) {
    std::map<std::string, HDF5Entry> entries;
    for (const HDF5Entry& entry : file.entries()) {
      EXPECT_EQ(entry.problem, "");
      EXPECT_TRUE(counts(file.read(entry.name))) << entry.name;
      file.verify(entry.name);
      entries.emplace(entry.name, entry);
    }
    return entries;
  }
};

TEST_P(ForeignFile, EveryTypeAndTheirAttributes) {
  const HDF5File file = open("types");
  const auto entries = entries_of(file);
  EXPECT_EQ(entries.size(), 14u);
  for (const auto& [name, dtype] : std::map<std::string, DType>{{"f8", DType::float64},
                                                                {"big_f4", DType::float32},
                                                                {"f2", DType::float16},
                                                                {"i1", DType::int32},
                                                                {"big_i2", DType::int32},
                                                                {"u2", DType::int32},
                                                                {"i4", DType::int32},
                                                                {"u4", DType::int64},
                                                                {"big_i8", DType::int64},
                                                                {"u8", DType::int64},
                                                                {"u1", DType::uint8},
                                                                {"bool", DType::boolean}})
    EXPECT_EQ(entries.at("types/" + name).dtype, dtype) << name;
  EXPECT_EQ(entries.at("empty").shape, (Shape{0, 3}));
  EXPECT_EQ(entries.at("scalar").shape, Shape{});
  for (const int i : {0, 9}) EXPECT_EQ(file.string_attribute("attribute_" + std::to_string(i)), "value " + std::to_string(i));
  EXPECT_EQ(file.string_attribute("attribute_10"), std::nullopt);
  EXPECT_TRUE(throws_with<CheckpointError>([&] { file.integer_attribute("attribute_1"); }, "attribute_1 is not an integer"));
}

TEST_P(ForeignFile, EveryIndexOfChunks) {
  const HDF5File file = open("chunked");
  EXPECT_EQ(entries_of(file).at("tied").first_name, "plain");
  const StateDict state = file.load();
  EXPECT_EQ(state.at("tied").raw_data(), state.at("plain").raw_data());
  EXPECT_EQ(state.at("filtered").shape(), (Shape{10, 7, 3}));
  if (GetParam() == std::string("oldest")) return;  // which has one kind of index for all
  const auto growing = entries_of(open("growing"));
  EXPECT_EQ(growing.size(), 5u);
  EXPECT_EQ(growing.at("growing_second").shape, (Shape{10, 7, 3}));
}

TEST_P(ForeignFile, GroupsOfManyNames) {
  const auto entries = entries_of(open("wide"));
  EXPECT_EQ(entries.size(), 60u);
  for (const auto& [name, entry] : entries) EXPECT_EQ(entry.first_name, "name_00");
}
INSTANTIATE_TEST_SUITE_P(Versions, ForeignFile, ::testing::Values("oldest", "v110", "latest"),
                         [](const auto& test) { return test.param; });

TEST(HDF5File, SelectsRenamesAndConverts) {
  const std::string path = kFolder + "good_keras.h5";
  const StateDict state = load_state_dict_hdf5(path, "/model_weights/");
  ASSERT_EQ(state.size(), 4u);
  EXPECT_EQ(state.at("dense_1.dense_1.kernel:0").shape(), (Shape{4, 3}));

  LoadOptions options;
  options.include = {"dense.*"};
  options.rename = {{"dense.dense.kernel:0", "weight"}, {"dense.dense.", "other."}};
  options.dtype = DType::float64;
  const StateDict part = load_state_dict_hdf5(path, "model_weights", options);
  ASSERT_EQ(part.size(), 2u);
  EXPECT_TRUE(counts(part.at("weight")));
  EXPECT_EQ(part.at("other.bias:0").dtype(), DType::float64);

  Linear linear(3, 4);
  EXPECT_TRUE(throws_with<ValueError>([&] { linear.load_state_dict(part); }, "unexpected other.bias:0"));
  linear.load_state_dict(part, false);
  EXPECT_TRUE(counts(linear.state_dict().at("weight")));

  options.rename = {{"dense.dense.kernel:0", "x"}, {"dense.dense.bias:0", "x"}};
  EXPECT_TRUE(throws_with<CheckpointError>([&] { load_state_dict_hdf5(path, "model_weights", options); }, "x is there twice"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { load_state_dict_hdf5(path, "weights"); }, path + ": weights: is missing"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { HDF5File(path).read("model_weights"); }, "model_weights: is missing"));
}

TEST(HDF5File, ReadsIntoATensor) {
  const HDF5File file(kFolder + "good_latest_chunked.h5");
  const Tensor same = zeros({10, 7, 3}), other = zeros({10, 3, 7}, {DType::float64, kCPU});
  file.read_into("filtered", same);
  EXPECT_TRUE(counts(same));
  const Tensor transposed = other.as_strided({10, 7, 3}, {21, 1, 7}, 0);
  file.read_into("filtered", transposed);
  EXPECT_TRUE(counts(contiguous_data(transposed)));
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { file.read_into("filtered", zeros({3})); }, "filtered is [10, 7, 3], the target is [3]"));
}

std::map<std::string, std::string> problems(const std::string& name) {
  std::map<std::string, std::string> result;
  const HDF5File file(kFolder + name);
  for (const HDF5Entry& entry : file.entries()) result[entry.name] = entry.problem;
  return result;
}

TEST(HDF5File, FollowsNoLinksAndNoCircles) {
  const auto found = problems("odd_links.h5");
  EXPECT_EQ(found.size(), 4u);
  EXPECT_EQ(found.at("a/x"), "");
  for (const char* name : {"soft", "loop", "external"}) EXPECT_EQ(found.at(name), "soft and external links are not followed");
  EXPECT_TRUE(
      throws_with<CheckpointError>([] { load_state_dict_hdf5(kFolder + "odd_links.h5"); }, "odd_links.h5: external: soft"));
}

TEST(HDF5File, TakesNoOtherTypes) {
  for (const auto& [name, problem] : problems("odd_types.h5"))
    EXPECT_EQ(problem.empty(), name == "unsigned") << name << ": " << problem;
  const HDF5File file(kFolder + "odd_types.h5");
  EXPECT_TRUE(throws_with<CheckpointError>([&] { file.read("unsigned"); }, "unsigned: holds unsigned values that are too large"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { file.verify("unsigned"); }, "too large"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { file.read("nine_dims"); }, "nine_dims: it has 9 dimensions"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { file.read("enum"); }, "an enumeration other than bool"));
}

TEST(HDF5File, TakesOnlyWhatTheFileHolds) {
  const auto sizes = problems("odd_sizes.h5");
  EXPECT_NE(sizes.at("unwritten"), "");
  EXPECT_NE(sizes.at("chunked"), "");
  EXPECT_NE(sizes.at("partly"), "");
  EXPECT_EQ(sizes.at("zeros"), "");
  for (const auto& [name, problem] : problems("odd_storage.h5")) EXPECT_NE(problem, "") << name;
}

TEST(HDF5File, TakesNoPagesWithoutBitmap) {
  EXPECT_NE(problems("odd_pages.h5").at("growing").find("pages without a bitmap"), std::string::npos);
}

TEST(HDF5File, ChecksCheckpointsAttributes) {
  EXPECT_EQ(nn::load(kFolder + "good_checkpoint.h5").step, 7);
  for (const auto& [name, cause] : std::map<std::string, std::string>{
           {"odd_without_format", "not a glade checkpoint"},
           {"odd_without_format_version", "attribute format_version is missing"},
           {"odd_without_step", "attribute step is missing"},
           {"odd_without_config", "attribute config is missing"},
           {"odd_without_created", "attribute created is missing"},
           {"odd_without_library_version", "attribute library_version is missing"},
           {"odd_version", "format version 2, this library reads version 1"},
           {"odd_step", "attribute step is not an integer"},
           {"odd_config", "attribute config is not a scalar"},
           {"odd_random", "/random/other: float32 [3], expected int64 [2]"},
           {"odd_links", "not a glade checkpoint"},
       }) {
    const std::string path = kFolder + name + ".h5";
    EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::load(path); }, path + ": " + cause));
  }
}

/// Damages every file in the ways of `change`, and loads it.
template <class F>
void load_damaged(const F& change) {
  for (const fs::directory_entry& entry : fs::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".h5") continue;
    SCOPED_TRACE(entry.path());
    change(read_file(entry.path()));
  }
}

TEST(DamagedFile, TruncatedAnywhere) {
  load_damaged([](const std::string& whole) {
    for (std::size_t i = 0; i < 50; ++i) load_everything(std::string_view(whole).substr(0, whole.size() * i / 50));
  });
}

TEST(DamagedFile, EveryByteOfTheHeaderFlipped) {
  load_damaged([](const std::string& whole) {
    for (std::size_t i = 0; i < 100; ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(~damaged[i]);
      load_everything(damaged);
    }
  });
}

}  // namespace
}  // namespace glade::nn
