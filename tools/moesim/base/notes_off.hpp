#pragma once

namespace moesim::tool {

// While one is alive note() says nothing, as where what is read is only tried.
class NotesOff {
 public:
  NotesOff();
  ~NotesOff();
  NotesOff(const NotesOff&) = delete;
  NotesOff& operator=(const NotesOff&) = delete;
};

}  // namespace moesim::tool
