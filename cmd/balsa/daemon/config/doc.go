// Package config is the configuration of a server and of an agent: the settings, their defaults, and Validate, which reports
// every wrong setting at once, each with the values that are allowed.
//
//	flags, file (cmd/balsa) ──▶ Server or Agent ──▶ Complete ──▶ Validate ──▶ daemon/server, daemon/agent
//
// The package knows no command line. Its errors name a setting as the flags and the keys of the configuration file do
// (--data-dir), because those are the names that an administrator knows. Paths says where the files of a machine are.
// Nothing here has side effects, except that Validate reads the files that settings name.
package config
