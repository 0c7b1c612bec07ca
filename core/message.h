#pragma once
// What glade has to say beside results and errors.
#include <string>

namespace glade {

enum class MessageKind { note, warning };

/// Sets what note() and warn() call; null, as at first, for a line on the standard error output. The handler may throw.
void set_message_handler(void (*handler)(MessageKind kind, const std::string& message));

/// Says what a user may want to know, as "glade: MESSAGE".
void note(const std::string& message);
/// Says what a user should look at, as "glade: warning: MESSAGE".
void warn(const std::string& message);

}  // namespace glade
