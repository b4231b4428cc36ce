// Package reach speaks HTTP to the processes in pods, through the port-forwards of the API server: it works wherever kubectl
// does, whatever network policies say, and the headers arrive as they were sent. It owns the tunnels and their bounds: how many
// there are at once, and how long a request may take. It knows nothing of what is asked. The commands of package plugin call it.
package reach
