// Package raftstore reads a clock.
package raftstore

import _ "time"
