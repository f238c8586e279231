#pragma once

#include "arrays.h"

void bind_logsumexp(nb::module_& module);
