"""What the example programs share: options and errors, models, tokenizers, data, progress and logs. The C++ files beside are the same
for the programs in C++."""
