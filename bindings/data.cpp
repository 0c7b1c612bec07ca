// glade.data: token files and the loader.
#include <glade/nn/data/loader.h>

#include <pybind11/stl/filesystem.h>

#include <variant>

#include "python.h"

namespace glade::python {

namespace {

using namespace nn::data;
using py::arg;

using Path = std::filesystem::path;

std::shared_ptr<TokenData> open(const std::variant<Path, std::vector<Path>>& files) {
  std::vector<std::string> paths;
  if (const auto* one = std::get_if<Path>(&files)) paths.push_back(one->string());
  else
    for (const Path& path : std::get<1>(files)) paths.push_back(path.string());
  return std::make_shared<TokenData>(paths);
}

Tensor read(const TokenData& data, std::int64_t begin, std::int64_t count) {
  if (count < 0 || count > data.size()) throw IndexError("TokenData: " + std::to_string(count) + " tokens");
  Tensor tokens = empty({count}, {DType::int64, kCPU});
  data.read(begin, {tokens.data<std::int64_t>(), static_cast<std::size_t>(count)});
  return tokens;
}

void write(TokenWriter& writer, const std::variant<Tensor, std::vector<std::int64_t>>& tokens) {
  const auto* tensor = std::get_if<Tensor>(&tokens);
  writer.write(tensor != nullptr ? tensor->to_vector<std::int64_t>() : std::get<1>(tokens));
}

}  // namespace

void bind_data(py::module_& module) {
  py::module_ data = public_submodule(module, "_data", "glade.data");
  py::class_<TokenData, std::shared_ptr<TokenData>>(
      data, "TokenData",
      "Tokens in a row, from one file or several, which are mapped into memory: token files, or text, whose bytes are the "
      "tokens. The files must stay as they are meanwhile; they may be replaced or deleted.")
      .def(py::init(&open), arg("files"),
           "CheckpointError that names the file and the cause: missing, empty, damaged, of another version or vocabulary, text "
           "beside token files.")
      .def("__len__", &TokenData::size)
      .def("__repr__",
           [](const TokenData& self) {
             return "TokenData(" + std::to_string(self.size()) + " tokens, vocab_size=" + std::to_string(self.vocab_size()) +
                    (self.is_text() ? ", text)" : ")");
           })
      .def_property_readonly("vocab_size", &TokenData::vocab_size, "All tokens are in [0, vocab_size).")
      .def_property_readonly("separator", &TokenData::separator, "The token that ends a document, or None.")
      .def_property_readonly("is_text", &TokenData::is_text, "Whether the files are text.")
      .def("read", read, arg("begin"), arg("count"), Unlocked(),
           "So many tokens, int64. IndexError where there are fewer; CheckpointError for one outside the vocabulary.");

  py::class_<TokenWriter>(data, "TokenWriter",
                          "Writes a token file, which takes the place of an older one only when it is whole: at the end of a "
                          "`with`, or by close().")
      .def(py::init([](const Path& path, std::int64_t vocab_size, std::optional<std::int64_t> separator) {
             return std::make_unique<TokenWriter>(path.string(), vocab_size, separator);
           }),
           arg("path"), arg("vocab_size"), arg("separator") = py::none(),
           "`separator` is the token that ends documents. ValueError for one outside the vocabulary; CheckpointError, here and "
           "below, where the file cannot be written.")
      .def("write", write, arg("tokens"), Unlocked(), "Appends tokens. IndexError for one outside the vocabulary.")
      .def("end_document", &TokenWriter::end_document, Unlocked(), "Appends the separator. ValueError where there is none.")
      .def("close", &TokenWriter::close, Unlocked(), "Gives the file its name. ValueError without any tokens.")
      .def("discard", &TokenWriter::discard, Unlocked(), "Leaves nothing behind.")
      .def(
          "__enter__", [](const py::object& self) { return self; }, "The writer itself.")
      .def(
          "__exit__",
          [](TokenWriter& self, const py::object& type, const py::object&, const py::object&) {
            if (type.is_none()) self.close();
            else self.discard();
          },
          arg("type"), arg("value"), arg("traceback"), "close(), or after an exception discard().");

  py::class_<Batch>(data, "Batch", "Sequences, and for every token the one after it.")
      .def_readonly("inputs", &Batch::inputs, "[sequences, seq_len], int64; packed: [1, sequences * seq_len].")
      .def_readonly("targets", &Batch::targets, "Of the same shape; -100 after the end of a packed document.")
      .def_property_readonly(
          "cu_seqlens",
          [](const Batch& self) -> std::optional<Tensor> {
            return self.cu_seqlens.defined() ? std::optional(self.cu_seqlens) : std::nullopt;
          },
          "Packed: where the sequences begin and the last one ends, on the CPU; else None.")
      .def_readonly("counted", &Batch::counted, "The number of targets but for those of -100.")
      .def("__repr__", [](const Batch& self) {
        const std::string packed =
            self.cu_seqlens.defined() ? ", " + std::to_string(self.cu_seqlens.numel() - 1) + " packed sequences" : "";
        return "Batch(inputs=" + self.inputs.shape().str() + ", targets=" + self.targets.shape().str() +
               ", counted=" + std::to_string(self.counted) + packed + ", device='" + self.inputs.device().name() + "')";
      });
  data.def(
      "make_batch",
      [](const TokenData& tokens, const std::vector<std::int64_t>& starts, std::int64_t seq_len, bool packed,
         const std::optional<std::pair<std::int64_t, std::int64_t>>& part) {
        return make_batch(tokens, starts, seq_len, packed, part);
      },
      arg("data"), arg("starts"), arg("seq_len"), arg("packed") = false, py::kw_only(), arg("tokens") = py::none(), Unlocked(),
      "The sequences of seq_len tokens that begin at `starts`, on the CPU; with `tokens`, begin and end, a part of each, as in "
      "Loader. ValueError for packed data without a separator; "
      "IndexError where the data end before; CheckpointError for damaged data.");

  py::class_<Loader>(
      data, "Loader",
      "An endless iterator over batches of the data cut into sequences, in an order that is shuffled anew for "
      "every epoch: a function of the arguments alone. Batches are assembled on a thread of their own while others "
      "are used; for a GPU in pinned memory, from which they are copied asynchronously.")
      .def(py::init([](std::shared_ptr<TokenData> tokens, std::int64_t batch_size, std::int64_t seq_len, bool packed,
                       std::uint64_t seed, std::int64_t begin, std::optional<std::int64_t> end, Device device,
                       std::optional<std::pair<std::int64_t, std::int64_t>> share,
                       std::optional<std::pair<std::int64_t, std::int64_t>> token_share) {
             return std::make_unique<Loader>(
                 std::move(tokens), LoaderOptions{batch_size, seq_len, share, packed, seed, begin, end, device, token_share});
           }),
           arg("data"), arg("batch_size"), arg("seq_len"), py::kw_only(), arg("packed") = false, arg("seed") = 0,
           arg("begin") = 0, arg("end") = py::none(), arg("device") = kCPU, arg("share") = py::none(), arg("tokens") = py::none(),
           "Takes the tokens from `begin` to `end`. Packed: all sequences in one row, in which a new one begins after every "
           "separator too. `share` is the part of each batch's sequences, begin and end, that is given, where several loaders "
           "share a batch: ProcessGroup.share(); `tokens` the part of each sequence's tokens, likewise, or, "
           "packed, of the row of all its sequences. "
           "ValueError where the data are too short or an argument is out of range.")
      .def("__repr__",
           [](const Loader& self) {
             return "Loader(position=" + std::to_string(self.position()) +
                    ", sequences_per_epoch=" + std::to_string(self.sequences_per_epoch()) + ")";
           })
      .def(
          "__iter__", [](const py::object& self) { return self; }, "The loader itself.")
      .def("__next__", &Loader::next, Unlocked(), "The next batch, on the device. Throws what went wrong on the thread.")
      .def_property_readonly(
          "position", &Loader::position,
          "The number of sequences in the batches given, those of other shares included; those only prepared do not count.")
      .def("seek", &Loader::seek, arg("position"), Unlocked(),
           "Goes on from there. ValueError for a position outside 0 to 2**62.")
      .def_property_readonly("sequences_per_epoch", &Loader::sequences_per_epoch, "The number of sequences of an epoch.")
      .def("state_dict", &Loader::state_dict, "The seed and the position, for the `data` of a checkpoint.")
      .def("load_state_dict", &Loader::load_state_dict, arg("state"), Unlocked(),
           "Goes on from where the state was taken. ValueError for what is no state of a loader.");
}

}  // namespace glade::python
