// Package failovertest owns the test of what runs once in the cluster when its leader dies: three stores joined in memory, an
// API server and the controllers over each, in one process. It has no code of its own.
//
//	store 1 ◀─simnet─▶ store 2 ◀─simnet─▶ store 3
//	   │                  │                  │
//	control.Server     control.Server     control.Server
//	   │                  │                  │
//	leader.Run         leader.Run         leader.Run      one of them leads
package failovertest
