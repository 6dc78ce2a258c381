package raftstore

import "github.com/balsahq/balsa/raftstore/raftstoretest"

// UseDisk makes the store that is opened with c keep everything on a test's disk.
func (c *Config) UseDisk(a raftstoretest.Attached) {
	c.testDisk = &testDisk{log: a.File, snaps: a.Snapshots, fresh: a.Fresh}
}
