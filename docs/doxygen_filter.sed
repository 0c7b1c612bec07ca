# A public header's opening comment becomes the description of the file.
1s,^#pragma once$,/// \\file,
2,/^($|[^/])/s,^//( |$),/// ,
# Doxygen finds no scope for specializations of the standard library's templates.
/^template <>$/{
  N
  /\nstruct std::/d
}
