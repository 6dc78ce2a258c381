// Package daemon knows a command line and a package for tests.
package daemon

import (
	_ "github.com/spf13/pflag"

	_ "github.com/balsahq/balsa/overlay/nettest"
)
