// Package mvcc plays dice.
package mvcc

import _ "math/rand/v2"
