# cmake -DREADME=README.md -DSHOWN=source file -P readme.cmake: the file stands in the README as a block of C++.
file(READ ${README} readme)
file(READ ${SHOWN} shown)
string(FIND "${readme}" "```cpp\n${shown}```" position)
if(position EQUAL -1)
  message(FATAL_ERROR "README.md does not show ${SHOWN} as it is")
endif()
