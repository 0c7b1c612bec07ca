# cmake -DPAGE=README.md -DSHOWN=source file -P shown.cmake: the file stands in the page as a block of C++.
file(READ ${PAGE} page)
file(READ ${SHOWN} shown)
string(FIND "${page}" "```cpp\n${shown}```" position)
if(position EQUAL -1)
  message(FATAL_ERROR "${PAGE} does not show ${SHOWN} as it is")
endif()
