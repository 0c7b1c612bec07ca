// The options of all programs that open a model.
#include "lm/command_line.h"
#include "lm/model.h"
#include "lm/tokenizer.h"

namespace lm {

void ModelOptions::add_to(CLI::App& app) {
  app.add_option(
         "--checkpoint", checkpoint,
         "What train_lm saved (of numbered files the newest), the folder of a published model, or its name in the cache of "
         "Hugging Face")
      ->required()
      ->type_name("FILE.h5|FOLDER|owner/name");
  app.add_option("--device", device, "auto, cpu, cuda or cuda:N")->type_name("DEVICE")->capture_default_str();
  app.add_option("--dtype", dtype, "Type of activations: float32, bfloat16 or float16 [the model's]")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
}

void add_tokenizer_option(CLI::App& app, std::string& kind) {
  app.add_option("--tokenizer", kind,
                 "How text becomes tokens: bytes, ids (the text is numbers), a tokenizer.json, a SentencePiece model, or auto: "
                 "the file in the model's "
                 "folder, or bytes for a vocabulary of 256")
      ->type_name("auto|bytes|ids|FILE")
      ->capture_default_str();
}

}  // namespace lm
