package config

// Agent is what a machine can be told that runs pods and is no server.
type Agent struct {
	Node

	Replace      bool // takes the name of a node that is gone for good
	LocalAPIPort int  // on 127.0.0.1, for programs of this machine; 0: none
}

// DefaultAgent returns the settings of an agent that is told nothing.
func DefaultAgent() Agent { return Agent{Node: DefaultNode(), LocalAPIPort: 6444} }
