// Token files, their loader, and training on packed documents.
#include <glade/nn/data/loader.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/ops/shape/shape.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <thread>

#include "support/process.h"
#include "support/testing.h"

namespace glade::nn::data {
namespace {

using namespace testing_support;
using Tokens = std::vector<std::int64_t>;

std::shared_ptr<TokenData> open(const std::vector<std::string>& paths) { return std::make_shared<TokenData>(paths); }

void write_tokens(const std::string& path, const Tokens& tokens, std::int64_t vocab_size,
                  std::optional<std::int64_t> separator = {}) {
  TokenWriter writer(path, vocab_size, separator);
  writer.write(tokens);
  writer.close();
}

Tokens counting(std::int64_t count, std::int64_t first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens read_all(const TokenData& data) {
  Tokens tokens(static_cast<std::size_t>(data.size()));
  data.read(0, tokens);
  return tokens;
}

class DataTest : public FolderTest {};

TEST_F(DataTest, FilesHoldWhatWasWritten) {
  for (const std::int64_t vocab_size : {2, 65536, 65537, 100000}) {
    const Tokens tokens{0, 1, vocab_size - 1, 1};
    write_tokens("a.bin", tokens, vocab_size, 1);
    const TokenData data({"a.bin"});
    EXPECT_EQ(read_all(data), tokens);
    EXPECT_EQ(data.vocab_size(), vocab_size);
    EXPECT_EQ(data.separator(), 1);
    EXPECT_FALSE(data.is_text());
    EXPECT_EQ(std::filesystem::file_size("a.bin"), 64 + 4 * (vocab_size <= 65536 ? 2u : 4u));
  }
  const Tokens many = counting(700000);  // more than a buffer
  write_tokens("a.bin", many, 700000);
  EXPECT_EQ(read_all(TokenData({"a.bin"})), many);
  EXPECT_EQ(TokenData({"a.bin"}).separator(), std::nullopt);
}

TEST_F(DataTest, FilesAreTakenOneAfterTheOther) {
  write_tokens("a.bin", {1, 2, 3}, 10);
  write_tokens("b.bin", {4}, 10);
  write_tokens("c.bin", {5, 6}, 10);
  const TokenData data({"a.bin", "b.bin", "c.bin"});
  EXPECT_EQ(read_all(data), (Tokens{1, 2, 3, 4, 5, 6}));
  for (std::int64_t begin = 0; begin <= 6; ++begin)
    for (std::int64_t end = begin; end <= 6; ++end) {
      Tokens some(static_cast<std::size_t>(end - begin));
      data.read(begin, some);
      EXPECT_EQ(some, counting(end - begin, begin + 1));
    }
  Tokens two(2);
  EXPECT_TRUE(throws_with<IndexError>([&] { data.read(5, two); }, "tokens 5 to 7 of 6"));
  EXPECT_TRUE(throws_with<IndexError>([&] { data.read(-1, two); }, "tokens -1 to 1 of 6"));
}

TEST_F(DataTest, TextIsItsBytes) {
  std::ofstream("a.txt") << "ab";
  std::ofstream("b.txt") << "\xff";
  const TokenData data({"a.txt", "b.txt"});
  EXPECT_EQ(read_all(data), (Tokens{'a', 'b', 255}));
  EXPECT_EQ(data.vocab_size(), 256);
  EXPECT_EQ(data.separator(), 0);
  EXPECT_TRUE(data.is_text());
}

TEST_F(DataTest, RefusesDamagedFiles) {
  write_tokens("good.bin", counting(100), 200, 7);
  const std::string good = read_file("good.bin");
  const auto expect_refused = [&](const std::string& content, const std::string& message) {
    std::ofstream("bad.bin", std::ios::binary | std::ios::trunc) << content;
    EXPECT_TRUE(throws_with<CheckpointError>([] { TokenData({"bad.bin"}); }, "bad.bin: " + message));
  };
  const auto changed = [&](std::size_t at, const std::string& bytes) {
    return std::string(good).replace(at, bytes.size(), bytes);
  };
  using namespace std::string_literals;
  expect_refused("", "is empty");
  expect_refused(good.substr(0, good.size() - 1), "truncated: 100 tokens of 2 bytes in a file of 263");
  expect_refused(good.substr(0, 64), "truncated");
  expect_refused(good + "x", "100 tokens of 2 bytes do not fill a file of 265");
  expect_refused(changed(8, "\2"), "of version 2, expected 1");
  expect_refused(changed(12, "\3"), "its tokens have 3 bytes");
  expect_refused(changed(12, "\0"s), "its tokens have 0 bytes");
  expect_refused(changed(16, std::string(8, '\xff')), "truncated");
  expect_refused(changed(16, "\0"s), "0 tokens of 2 bytes do not fill");
  expect_refused(changed(24, std::string(8, '\0')), "its vocabulary has 0 tokens");
  expect_refused(changed(24, std::string(8, '\xff')), "its vocabulary has");
  expect_refused(changed(32, "\xff"), "its separator is 255, outside its vocabulary of 200");
  expect_refused(changed(39, "\x80"), "its separator is -");
  expect_refused(changed(50, "x"), "its header is damaged");
  expect_refused(changed(16, "\0"s).substr(0, 64), "has no tokens");
  EXPECT_TRUE(throws_with<CheckpointError>([] { TokenData({"missing.bin"}); }, "missing.bin: cannot be opened: No such file"));
  EXPECT_TRUE(throws_with<CheckpointError>([] { TokenData({"."}); }, ".: is not a file"));
  EXPECT_TRUE(throws_with<ValueError>([] { TokenData({}); }, "no files"));

  // Every single byte: an error, or tokens of the vocabulary.
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::ofstream("bad.bin", std::ios::binary | std::ios::trunc) << changed(at, "\x5a");
    try {
      const TokenData data({"bad.bin"});
      for (const std::int64_t token : read_all(data)) ASSERT_TRUE(token >= 0 && token < data.vocab_size());
    } catch (const CheckpointError&) {
    }
  }
  std::ofstream("bad.bin", std::ios::binary | std::ios::trunc) << changed(64 + 20, "\xc8");
  Tokens ten(10);
  const TokenData damaged({"bad.bin"});
  damaged.read(0, ten);
  EXPECT_TRUE(
      throws_with<CheckpointError>([&] { damaged.read(5, ten); }, "bad.bin: token 200 lies outside its vocabulary of 200"));
}

TEST_F(DataTest, RefusesBinariesAndTakesTextInAnyEncoding) {
  const auto write = [](const std::string& content) { std::ofstream("file", std::ios::binary | std::ios::trunc) << content; };
  const auto expect_refused = [&](const std::string& content, const std::string& message) {
    write(content);
    EXPECT_TRUE(throws_with<CheckpointError>([] { TokenData({"file"}); }, "file: " + message));
  };
  std::mt19937 engine(1);
  std::string random(100000, 0), ids;
  for (char& c : random) c = static_cast<char>(engine());
  expect_refused("\x89HDF\r\n\x1a\n" + std::string(100, 'x'), "is an HDF5 file");
  expect_refused(random, "is neither text");
  expect_refused(std::string(1000000, 'x') + random + random + random + random, "is neither text");
  for (const int vocab_size : {256, 32000, 50000}) {
    Tokens tokens(5000);
    for (std::int64_t& token : tokens) token = static_cast<std::int64_t>(engine()) % vocab_size;
    write_tokens("tokens.bin", tokens, vocab_size);
    expect_refused(read_file("tokens.bin").substr(64), "is neither text");
  }
  std::string utf16 = "\xff\xfe", latin, shift_jis, documents;
  for (int i = 0; i < 5000; ++i) {
    utf16 += {static_cast<char>(engine()), static_cast<char>(0x4e + i % 80)};  // Chinese
    latin += static_cast<char>(i % 7 == 0 ? 0xc0 + i % 64 : 'a' + i % 26);
    shift_jis += {static_cast<char>(0x88 + i % 16), static_cast<char>(0x40 + i % 60)};  // kanji
    documents += std::string(static_cast<std::size_t>(1 + i % 5), 'x') + '\0';
  }
  for (const std::string& text : {utf16, latin, shift_jis, documents, std::string("\x1b[31mred\x1b[0m\r\n"), std::string("a")}) {
    write(text);
    EXPECT_EQ(TokenData({"file"}).size(), static_cast<std::int64_t>(text.size()));
  }
}

TEST_F(DataTest, RefusesFilesThatDoNotGoTogether) {
  write_tokens("a.bin", {1, 2}, 10, 3);
  write_tokens("b.bin", {1, 2}, 11, 3);
  write_tokens("c.bin", {1, 2}, 10);
  std::ofstream("a.txt") << "text";
  EXPECT_TRUE(throws_with<CheckpointError>([] { TokenData({"a.bin", "b.bin"}); }, "b.bin: has a vocabulary of 11"));
  EXPECT_TRUE(
      throws_with<CheckpointError>([] { TokenData({"a.bin", "c.bin"}); }, "c.bin: has a vocabulary of 10 and separator -1"));
  EXPECT_TRUE(throws_with<CheckpointError>([] { TokenData({"a.bin", "a.txt"}); }, "a.txt: is text, but a.bin is a token file"));
  EXPECT_TRUE(throws_with<CheckpointError>([] { TokenData({"a.txt", "a.bin"}); }, "a.bin: is a token file, but a.txt is text"));
}

TEST_F(DataTest, WriterRefusesAndLeavesNothing) {
  EXPECT_TRUE(throws_with<ValueError>([] { TokenWriter("a.bin", 0); }, "vocab_size is 0"));
  EXPECT_TRUE(throws_with<ValueError>([] { TokenWriter("a.bin", 10, 10); }, "separator is 10, expected a value in [0, 10)"));
  EXPECT_TRUE(throws_with<CheckpointError>([] { TokenWriter("nowhere/a.bin", 10); }, "nowhere/a.bin"));
  {
    TokenWriter writer("a.bin", 10);
    EXPECT_TRUE(throws_with<IndexError>([&] { writer.write(Tokens{1, 10}); }, "token 10 is outside the vocabulary of 10"));
    EXPECT_TRUE(throws_with<IndexError>([&] { writer.write(Tokens{-1}); }, "token -1"));
    EXPECT_TRUE(throws_with<ValueError>([&] { writer.end_document(); }, "no separator"));
    EXPECT_TRUE(throws_with<ValueError>([&] { writer.close(); }, "no tokens"));
  }
  EXPECT_TRUE(std::filesystem::is_empty("."));
  write_tokens("a.bin", {1}, 10);
  const std::string before = read_file("a.bin");
  { TokenWriter("a.bin", 10).write(Tokens{2}); }
  EXPECT_EQ(read_file("a.bin"), before);
  TokenWriter writer("a.bin", 10);
  writer.write(Tokens{2});
  writer.close();
  EXPECT_TRUE(throws_with<ValueError>([&] { writer.write(Tokens{2}); }, "closed"));
}

// ---- batches ---------------------------------------------------------------------------------------------------------

TEST_F(DataTest, PackedBatchesKnowTheirDocuments) {
  write_tokens("a.bin", {1, 2, 9, 3, 9, 9, 4, 5, 6, 7, 9, 8}, 10, 9);
  const TokenData data({"a.bin"});
  const Tokens starts{0, 4};
  const Batch rows = make_batch(data, starts, 4);
  EXPECT_EQ(rows.inputs.to_vector<std::int64_t>(), (Tokens{1, 2, 9, 3, 9, 9, 4, 5}));
  EXPECT_EQ(rows.targets.to_vector<std::int64_t>(), (Tokens{2, 9, 3, 9, 9, 4, 5, 6}));
  EXPECT_EQ(rows.inputs.shape(), (Shape{2, 4}));
  EXPECT_FALSE(rows.cu_seqlens.defined());
  EXPECT_EQ(rows.counted, 8);
  const Batch packed = make_batch(data, starts, 4, true);
  EXPECT_EQ(packed.inputs.shape(), (Shape{1, 8}));
  EXPECT_EQ(packed.inputs.to_vector<std::int64_t>(), rows.inputs.to_vector<std::int64_t>());
  EXPECT_EQ(packed.targets.to_vector<std::int64_t>(), (Tokens{2, 9, -100, 9, -100, -100, 5, 6}));
  EXPECT_EQ(packed.cu_seqlens.to_vector<std::int64_t>(), (Tokens{0, 3, 4, 5, 6, 8}));
  EXPECT_EQ(packed.counted, 5);
  // Parts of the tokens, where ranks share them.
  const Batch part = make_batch(data, starts, 4, true, std::pair<std::int64_t, std::int64_t>(1, 7));
  EXPECT_EQ(part.inputs.to_vector<std::int64_t>(), (Tokens{2, 9, 3, 9, 9, 4}));
  EXPECT_EQ(part.targets.to_vector<std::int64_t>(), (Tokens{9, -100, 9, -100, -100, 5}));
  EXPECT_EQ(part.cu_seqlens.to_vector<std::int64_t>(), (Tokens{-1, 2, 3, 4, 5, 7}));
  EXPECT_EQ(part.counted, 3);
  const Batch columns = make_batch(data, starts, 4, false, std::pair<std::int64_t, std::int64_t>(1, 3));
  EXPECT_EQ(columns.inputs.to_vector<std::int64_t>(), (Tokens{2, 9, 9, 4}));
  EXPECT_EQ(columns.targets.to_vector<std::int64_t>(), (Tokens{9, 3, 4, 5}));
  EXPECT_TRUE(throws_with<ValueError>([&] { make_batch(data, starts, 4, true, std::pair<std::int64_t, std::int64_t>(1, 9)); },
                                      "tokens 1 to 9 of 8"));
  // A separator at the end of a sequence opens no empty one.
  EXPECT_EQ(make_batch(data, Tokens{7}, 4, true).cu_seqlens.to_vector<std::int64_t>(), (Tokens{0, 4}));
  write_tokens("b.bin", {1, 2, 3}, 10);
  EXPECT_TRUE(throws_with<ValueError>([] { make_batch(TokenData({"b.bin"}), Tokens{0}, 1, true); }, "no separator"));
}

TEST_F(DataTest, AnEpochTakesEverySequenceOnce) {
  for (const std::int64_t size : {5, 9, 57, 1001}) {
    write_tokens("a.bin", counting(size), 2000);
    constexpr std::int64_t seq_len = 4;
    Loader loader(open({"a.bin"}), {.batch_size = 1, .seq_len = seq_len, .seed = 3});
    const std::int64_t sequences = loader.sequences_per_epoch();
    EXPECT_EQ(sequences, (size - 1) / seq_len);
    std::vector<Tokens> epochs;
    for (int epoch = 0; epoch < 3; ++epoch) {
      Tokens starts;
      for (std::int64_t i = 0; i < sequences; ++i) {
        const Batch batch = loader.next();
        const auto inputs = batch.inputs.to_vector<std::int64_t>(), targets = batch.targets.to_vector<std::int64_t>();
        EXPECT_EQ(inputs, counting(seq_len, inputs[0]));
        EXPECT_EQ(targets, counting(seq_len, inputs[0] + 1));
        starts.push_back(inputs[0]);
      }
      epochs.push_back(starts);
      std::ranges::sort(starts);
      for (std::size_t i = 1; i < starts.size(); ++i) EXPECT_EQ(starts[i], starts[i - 1] + seq_len);
      EXPECT_GE(starts[0], 0);
      EXPECT_LT(starts.back() + seq_len, size);
    }
    if (sequences < 10) continue;
    EXPECT_NE(epochs[0], epochs[1]);
    EXPECT_FALSE(std::ranges::is_sorted(epochs[0]));
  }
}

class LoaderTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    write_tokens(path_, counting(5000), 5000, 7);
    data_ = open({path_});
  }
  void TearDown() override { std::filesystem::remove(path_); }
  LoaderOptions options() const { return {.batch_size = 3, .seq_len = 16, .seed = 11, .device = device()}; }

  const std::string path_ = (std::filesystem::temp_directory_path() / ("glade." + std::to_string(getpid()) + ".bin")).string();
  std::shared_ptr<TokenData> data_;
};

TEST_P(LoaderTest, GoesOnWhereItWasStopped) {
  Loader whole(data_, options());
  std::vector<Tokens> expected;
  for (int i = 0; i < 50; ++i) {
    const Batch batch = whole.next();
    EXPECT_EQ(batch.inputs.device(), device());
    expected.push_back(batch.inputs.to_vector<std::int64_t>());
    EXPECT_EQ(whole.position(), 3 * (i + 1));
  }
  for (const int stop : {0, 1, 2, 17, 49}) {
    Loader first(data_, options());
    for (int i = 0; i < stop; ++i)
      EXPECT_EQ(first.next().inputs.to_vector<std::int64_t>(), expected[static_cast<std::size_t>(i)]);
    const StateDict state = first.state_dict();  // with batches prepared that nobody took
    LoaderOptions other = options();
    other.seed = 12;
    Loader second(data_, other);
    second.next();
    second.load_state_dict(state);
    for (std::size_t i = static_cast<std::size_t>(stop); i < expected.size(); ++i)
      ASSERT_EQ(second.next().inputs.to_vector<std::int64_t>(), expected[i]);
  }
}

// Batches that are kept are not written over by later ones, and all are read after the device has run far behind.
TEST_P(LoaderTest, BatchesStayAsTheyAre) {
  Loader loader(data_, options());
  std::vector<Batch> batches;
  for (int i = 0; i < 200; ++i) batches.push_back(loader.next());
  Loader again(data_, options());
  for (const Batch& batch : batches)
    ASSERT_EQ(batch.inputs.to_vector<std::int64_t>(), again.next().inputs.to_vector<std::int64_t>());
}

TEST_P(LoaderTest, ErrorsOfTheThreadReachTheCaller) {
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(64 + 2 * 2500);
    file.write("\xff\xff", 2);
  }
  Loader loader(data_, options());
  int good = 0;
  const auto take_all = [&] {
    for (; good < 200; ++good) loader.next();
  };
  EXPECT_TRUE(throws_with<CheckpointError>(take_all, path_ + ": token 65535 lies outside its vocabulary of 5000"));
  EXPECT_LT(good, 5000 / 48 + 1);
  const std::int64_t position = loader.position();
  EXPECT_EQ(position, 3 * good);
  EXPECT_TRUE(throws_with<CheckpointError>([&] { loader.next(); }, "65535"));  // again, without waiting for ever
  loader.seek(position + 3);
  loader.next();
}

TEST_P(LoaderTest, EndsAtAnyTime) {
  for (int i = 0; i < 100; ++i) {
    Loader loader(data_, options());
    for (int j = 0; j < i % 4; ++j) loader.next();
    if (i % 3 == 0) loader.seek(0);
    if (i % 5 == 0) loader.next();
  }
}

TEST_P(LoaderTest, SeveralThreadsTakeEveryBatchOnce) {
  Loader loader(data_, options()), alone(data_, options());
  constexpr std::size_t kThreads = 4, kBatches = 100;
  std::vector<std::vector<Tokens>> taken(kThreads);
  {
    std::vector<std::jthread> threads;
    for (std::vector<Tokens>& own : taken)
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < kBatches; ++i) own.push_back(loader.next().inputs.to_vector<std::int64_t>());
      });
  }
  std::multiset<Tokens> all, expected;
  for (const auto& own : taken) all.insert(own.begin(), own.end());
  for (std::size_t i = 0; i < kThreads * kBatches; ++i) expected.insert(alone.next().inputs.to_vector<std::int64_t>());
  EXPECT_EQ(all, expected);
  EXPECT_EQ(loader.position(), alone.position());
}

// Whatever the number of shares, together they are the batches of one loader.
TEST_P(LoaderTest, SharesMakeUpTheBatch) {
  Loader whole(data_, options());
  LoaderOptions first = options(), rest = options();
  first.share = {0, 1};
  rest.share = {1, 3};
  Loader a(data_, first), b(data_, rest);
  for (int i = 0; i < 5; ++i) {
    const auto expected = whole.next().inputs.to_vector<std::int64_t>();
    auto values = a.next().inputs.to_vector<std::int64_t>();
    for (const std::int64_t x : b.next().inputs.to_vector<std::int64_t>()) values.push_back(x);
    EXPECT_EQ(values, expected);
    EXPECT_EQ(b.position(), whole.position());
  }
}

// The same for tokens, each with the target that it has in the whole sequence.
TEST_P(LoaderTest, SharesOfTokensMakeUpTheSequences) {
  Loader whole(data_, options());
  LoaderOptions first = options(), rest = options();
  first.tokens = {0, 5};
  rest.tokens = {5, 16};
  Loader a(data_, first), b(data_, rest);
  for (int i = 0; i < 5; ++i) {
    const Batch expected = whole.next(), before = a.next(), after = b.next();
    EXPECT_EQ(cat({before.inputs, after.inputs}, 1).to_vector<std::int64_t>(), expected.inputs.to_vector<std::int64_t>());
    EXPECT_EQ(cat({before.targets, after.targets}, 1).to_vector<std::int64_t>(), expected.targets.to_vector<std::int64_t>());
    EXPECT_EQ(before.counted + after.counted, expected.counted);
  }
}

TEST_P(LoaderTest, RefusesBadOptions) {
  const auto refused = [&](auto change, const std::string& message) {
    LoaderOptions bad = options();
    change(bad);
    EXPECT_TRUE(throws_with<ValueError>([&] { Loader(data_, bad); }, message));
  };
  refused([](auto& o) { o.batch_size = 0; }, "batch_size is 0");
  refused([](auto& o) { o.seq_len = -1; }, "seq_len -1");
  refused([](auto& o) { o.seq_len = 5000; }, "5000 tokens are too few for sequences of 5000");
  refused([](auto& o) { o.begin = 4990; }, "10 tokens are too few");
  refused([](auto& o) { o.end = 5001; }, "to 5001 of 5000");
  refused([](auto& o) { o.begin = -1; }, "from token -1");
  for (const auto& [begin, end] : {std::pair(-1, 2), {1, 1}, {2, 4}})
    refused([&](auto& o) { o.share = {begin, end}; }, "the share is from sequence " + std::to_string(begin));
  for (const auto& [begin, end] : {std::pair(-1, 2), {1, 1}, {2, 17}})
    refused([&](auto& o) { o.tokens = {begin, end}; }, "tokens " + std::to_string(begin) + " to " + std::to_string(end));
  Loader loader(data_, options());
  EXPECT_TRUE(throws_with<ValueError>([&] { loader.seek(-1); }, "position is -1"));
  constexpr std::int64_t kMax = std::int64_t{1} << 62;
  EXPECT_TRUE(throws_with<ValueError>([&] { loader.seek(kMax + 1); }, "position is 4611686018427387905, expected 0 to"));
  const StateDict forged{{"seed", Tensor::from_vector<std::int64_t>({0})},
                         {"position", Tensor::from_vector<std::int64_t>({kMax + 1})}};
  EXPECT_TRUE(throws_with<ValueError>([&] { loader.load_state_dict(forged); }, "position is 4611686018427387905"));
  EXPECT_EQ(loader.position(), 0);
  loader.seek(kMax);
  loader.next();
  EXPECT_EQ(loader.position(), kMax + options().batch_size);
  EXPECT_TRUE(throws_with<ValueError>([&] { Loader(data_, {.batch_size = kMax, .seq_len = 5}); }, "at most 4294967296 tokens"));
  EXPECT_TRUE(throws_with<ValueError>([&] { loader.load_state_dict({}); }, "no seed"));
  EXPECT_TRUE(throws_with<ValueError>(
      [&] { loader.load_state_dict({{"seed", zeros({}, {DType::int64, kCPU})}, {"position", zeros({})}}); },
      "position is float32"));
}
GLADE_DEVICE_TESTS(LoaderTest);

// ---- training --------------------------------------------------------------------------------------------------------

std::unique_ptr<models::CausalLM> small_model(const std::string& type, const std::string& more) {
  manual_seed(0);
  return models::make_causal_lm(R"({"model_type": ")" + type + R"(", "vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 2,
                                "num_heads": 2, "dtype": "float64")" +
                                more + "}");
}

class PackedTest : public ::testing::TestWithParam<const char*> {};

// Loss and gradients of packed documents are those of each document by itself.
TEST_P(PackedTest, EqualsOneDocumentAtATime) {
  const std::string path = (std::filesystem::temp_directory_path() / ("glade." + std::to_string(getpid()) + ".packed")).string();
  Tokens tokens;
  for (int document = 0; document < 12; ++document) {
    for (int i = 0; i < document * 7 % 11; ++i) tokens.push_back((i * i + document) % 9);
    tokens.push_back(9);
  }
  write_tokens(path, tokens, 10, 9);
  const TokenData data({path});
  std::filesystem::remove(path);
  const Batch packed = make_batch(data, Tokens{0, 20}, 20, true);

  const bool lightning = std::string(GetParam()) == "lightning";
  const auto model = small_model(GetParam(), lightning ? "" : R"(, "use_short_conv": true)");
  model->to(DType::float64);
  const Tensor loss = model->loss(packed.inputs, packed.targets, packed.cu_seqlens);
  loss.backward();
  Tensors gradients;
  for (const Tensor& x : model->parameters()) gradients.push_back(x.grad());
  model->zero_grad();

  const auto inputs = packed.inputs.to_vector<std::int64_t>(), targets = packed.targets.to_vector<std::int64_t>(),
             borders = packed.cu_seqlens.to_vector<std::int64_t>();
  ASSERT_GT(borders.size(), 6u);
  double sum = 0;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    const Shape shape{1, borders[i + 1] - borders[i]};
    const auto part = [&](const Tokens& all) {
      return Tensor::from_vector(Tokens(all.begin() + borders[i], all.begin() + borders[i + 1]), shape);
    };
    const auto counted = shape.numel() - std::count(targets.begin() + borders[i], targets.begin() + borders[i + 1], -100);
    if (counted == 0) continue;
    const double weight = static_cast<double>(counted) / static_cast<double>(packed.counted);
    const Tensor one = model->loss(part(inputs), part(targets));
    one.backward(full({}, weight, one.options()));
    sum += weight * one.item<double>();
  }
  EXPECT_NEAR(loss.item<double>(), sum, 1e-12);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    EXPECT_TRUE(all_close(gradients[i], model->parameters()[i].grad(), 1e-9, 1e-12)) << model->named_parameters()[i].first;
}
INSTANTIATE_TEST_SUITE_P(Models, PackedTest, ::testing::Values("gla", "lightning"));

}  // namespace
}  // namespace glade::nn::data
