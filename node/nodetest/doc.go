// Package nodetest owns a container runtime in memory for the tests of the
// node agent: it speaks CRI's interfaces, tells events, and lets a test say
// how long each run of a container lasts and how it ends.
//
// A Runtime keeps everything under one lock, holds it over no call to others,
// and reads the time only through package time, so it runs in a synctest
// bubble.
package nodetest
