#pragma once
// Safetensors files that are replaced together with others. For pretrained.cpp and safetensors.cpp; not public.
#include <glade/nn/output_file.h>
#include <glade/nn/safetensors.h>

namespace glade::nn {

/// Like save_safetensors, into a file that the caller commits.
void write_safetensors(OutputFile& output, const TensorInfos& tensors, const std::function<Tensor(const std::string& name)>& read,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace glade::nn
