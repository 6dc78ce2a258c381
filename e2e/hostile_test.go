package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// apiName is an additional name of the API.
const apiName = "api.balsa.example"

var hostileBinary = fromEnv("HOSTILE_BIN", "../bin/hostile")

// hostileAgent runs bin/hostile on an agent's machine, as root and with all files of the agent. It must not change
// anything outside its own node.
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
