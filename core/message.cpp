#include <glade/core/message.h>

#include <atomic>
#include <cstdio>

namespace glade {

namespace {

void print(MessageKind kind, const std::string& message) {
  std::fprintf(stderr, "glade: %s%s\n", kind == MessageKind::warning ? "warning: " : "", message.c_str());
}

std::atomic<void (*)(MessageKind, const std::string&)> message_handler{print};

}  // namespace

void set_message_handler(void (*handler)(MessageKind kind, const std::string& message)) {
  message_handler = handler != nullptr ? handler : print;
}

void note(const std::string& message) { message_handler.load()(MessageKind::note, message); }
void warn(const std::string& message) { message_handler.load()(MessageKind::warning, message); }

}  // namespace glade
