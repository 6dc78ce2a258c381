package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// apiName is a name of the API beside those that every cluster has.
const apiName = "api.balsa.example"

var hostileBinary = fromEnv("HOSTILE_BIN", "../bin/hostile")

// hostileAgent lets a program do its worst on an agent's machine, as root, with all that the agent has. It must achieve
// nothing outside of its own node.
func hostileAgent(t *testing.T, s *several) {
	evil, victim, server := s.agents[0], s.agents[1], s.servers[0]
	program, err := filepath.Abs(hostileBinary)
	s.must(err)
	out, err := evil.Command(t.Context(), program,
		"-agent-dir="+filepath.Join(evil.DataDir, "agent"), "-server-dir="+filepath.Join(s.servers[1].DataDir, "server"),
		"-server="+server.api(), "-address="+evil.Addr.String(), "-victim="+victim.NodeName(), "-victim-address="+victim.Addr.String(),
		"-san="+apiName).CombinedOutput()
	if err != nil {
		t.Fatalf("%v (the program is made by `make bin/hostile`)\n%s", err, out)
	}
	t.Logf("%s", strings.TrimSpace(string(out)))
	server.kubectl("delete", "namespace", "hostile", "--wait=false")
}
