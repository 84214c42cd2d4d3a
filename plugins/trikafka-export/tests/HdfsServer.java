// A small HDFS, as Hadoop's own tests have it: HdfsServer DIRECTORY [NAME=VALUE...], with further settings of Hadoop.
//
// Its files are below the directory. It prints the port of the name node, and ends when its input does.

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class HdfsServer {
    public static void main(String[] given) throws Exception {
        Configuration settings = new Configuration();
        settings.set("hdfs.minidfs.basedir", given[0]);
        // Else the client waits half a second at the end of many a file for the report of the data node. Needs two of these.
        settings.setInt("dfs.namenode.file.close.num-committed-allowed", 1);
        for (int i = 1; i < given.length; i++) {
            String[] setting = given[i].split("=", 2);
            settings.set(setting[0], setting[1]);
        }
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings).numDataNodes(2).build();
        cluster.waitActive();
        System.out.println(cluster.getNameNodePort());
        while (System.in.read() >= 0) {
        }
        System.exit(0);
    }
}
