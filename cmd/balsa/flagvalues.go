package main

import "github.com/spf13/pflag"

// flagValues are the values that a server runs with, by the names of its flags:
// those given, those of its file, those of the cluster and the defaults. Join
// tokens are left out.
func (c *config) flagValues() map[string]string {
	f, own := pflag.NewFlagSet("server", pflag.ContinueOnError), *c
	own.Token = ""
	own.bindPaths(f)
	own.bindNode(f)
	own.bindServer(f)
	out := map[string]string{}
	f.VisitAll(func(flag *pflag.Flag) { out[flag.Name] = flag.Value.String() })
	return out
}
