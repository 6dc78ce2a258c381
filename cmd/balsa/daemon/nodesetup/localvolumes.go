package nodesetup

import (
	"net/http"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/node/localcsi"
)

// startLocalVolumes serves volumes of this machine's disk and returns what passes the provisioner's calls on to them; nil
// when that is turned off.
func (a Node) startLocalVolumes() (http.Handler, error) {
	if a.Config.DisableLocalStorage {
		return nil, localcsi.Withdraw(a.Config.AgentDir())
	}
	driver, err := localcsi.New(localcsi.Config{
		Dir: a.Config.LocalVolumesDir(), RootDir: a.Config.AgentDir(), NodeName: a.Config.NodeName,
		Version: config.KubernetesVersion + "+balsa", Logger: a.Logger,
	})
	if err != nil {
		return nil, err
	}
	a.Parts.Start("local volumes", driver.Run)
	return localcsi.Forward(a.Config.AgentDir())
}
